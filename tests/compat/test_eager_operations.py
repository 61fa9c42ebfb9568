"""Operations outside of functions, of a coordinator that is not to wait for servers that are stopped."""

import pytest


def functions_made(work):
    """How many functions `work()` adds to those that TensorFlow knows."""
    from tensorflow.python.eager import context

    before = set(context.context().list_function_names())
    work()
    return len(set(context.context().list_function_names()) - before)


@pytest.fixture
def as_functions_again(tf):
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    yield
    pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, True)


def test_tensorflow_itself_makes_a_function_of_a_new_operation(tf):
    """Fails when `tf2dist.compat.eager_operations` is no longer needed."""
    assert functions_made(lambda: tf.raw_ops.Acosh(x=1.0)) > 0


def test_ours_makes_none(tf, as_functions_again):
    from tf2dist.compat.eager_operations import run_operations_without_functions

    run_operations_without_functions()

    def work():
        variable = tf.Variable(tf.raw_ops.Asinh(x=0.0))
        variable.assign_add(tf.raw_ops.Atanh(x=0.5))
        assert float(variable) == pytest.approx(0.549306)

    assert functions_made(work) == 0
