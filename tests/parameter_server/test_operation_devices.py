"""What is computed of a large tensor is where that is."""


def test_operations_follow_the_largest_input(tf):
    """Also in a condition, whose operations see what stands for it; and what a block says inside counts."""
    from tf2dist.parameter_server.operation_devices import where_most_comes_from

    default, far, said = (f"/job:localhost/replica:0/task:0/device:CPU:{n}" for n in range(3))
    made = {}

    @tf.function(autograph=False)
    def compute(large, small):
        with tf.device(far):
            large = tf.identity(large)
        with tf.device(default):
            small = tf.identity(small)

        def halved():
            made["in a condition"] = small * large
            return made["in a condition"]

        with where_most_comes_from(default):
            made["alone"] = small * large
            made["without inputs"] = tf.constant(1.0) + 0.0
            result = tf.cond(small > 0, halved, lambda: large)
            with tf.device("/device:CPU:2"):
                made["said"] = result + 1.0
        return result

    compute(tf.ones([5]), tf.constant(0.5))
    devices = {what: tensor.device for what, tensor in made.items()}
    assert devices == {"in a condition": far, "alone": far, "without inputs": default, "said": said}
