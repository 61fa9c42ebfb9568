"""Programs, name maps and names of models that are nearly right, or not at all."""

import pytest
from hypothesis import given

from tests.conftest import every_third
from tests.hostile import contents, examples, parsed, texts, variables
from tf2dist.convert_checkpoint import ConvertError, find_checkpoint, model_argument, name_map
from tf2dist.migrate.__main__ import main

_PROGRAM = (
    "# -*- coding: latin-1 -*-\nimport tensorflow as tf\nserver = tf.train.Server(cluster, job_name='ps')\n"
    "with tf.device(tf.train.replica_device_setter(cluster=c)):\n    x = tf.get_variable('x', [1])\nserver.join()\n",
    "from tensorflow.python.training import (server_lib as s,\n  training as t)\nprint s.Server\n",
    "%matplotlib inline\n!ls\ntf.train.MonitoredTrainingSession(is_chief=True)\n",
)


@examples()
@given(contents(*_PROGRAM))
def test_programs(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "program.py"
    path.write_bytes(content)
    assert parsed((), main, [str(path)]) in (0, 1)


@every_third("text", ["(" * 100_000, "tf." * 50_000, "\\\n" * 50_000, "'" * 50_000, "import " * 20_000, '"""' * 30_001])
def test_very_much_of_one_thing(tmp_path, text):
    (tmp_path / "program.py").write_text(text)
    assert parsed((), main, [str(tmp_path / "program.py")]) == 0


@examples()
@given(contents('{"dense/kernel": "hidden/weights", "dense/bias": "b"}'))
def test_name_maps(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "map.json"
    path.write_bytes(content)
    parsed(ConvertError, name_map.read_name_map, str(path))


@examples()
@given(variables("trainers.mnist_networks:sigmoid(0.001)", "a.b:f(0.1, n=[2, 'x'])", "a:b.c"))
def test_names_of_models(text):
    parsed(ConvertError, model_argument.parsed, text)


_MODELS = ("a:f(" + "[" * 1000, "a:" + "-" * 5000 + "1", "a:f(" + "9" * 5000 + ")", "a:f(*b)", "a:f({[]: 1})",
           "a:f(1 + 'x')", "a:" + "(" * 150 + "b" + ")" * 150, "a:f(" + "-" * 900 + "1)")  # fmt: skip


@pytest.mark.parametrize("text", _MODELS, ids=range(len(_MODELS)))
def test_models_of_too_much(text):
    parsed(ConvertError, model_argument.parsed, text)


@examples()
@given(texts('model_checkpoint_path: "/a/model.ckpt-7"\nall_model_checkpoint_paths: "model.ckpt-7"\n'))
def test_states_of_directories(tmp_path_factory, text):
    directory = tmp_path_factory.getbasetemp() / "old"
    directory.mkdir(exist_ok=True)
    (directory / "model.ckpt-7.index").touch()
    (directory / f"model.ckpt-{'9' * 200}.index").touch()
    (directory / "checkpoint").write_bytes(text.encode("utf-8", "surrogatepass"))
    parsed(ConvertError, find_checkpoint.checkpoint, str(directory))
