"""With TensorFlow itself."""

import pytest


@pytest.mark.slow
def test_servers_listen_on_the_held_ports_of_processes_that_need_not_import_tensorflow(start):
    code = """
    print("at hand:", *(name in sys.modules for name in ("tensorflow", "keras", "tf2dist.training.api")))
    import keras
    import tensorflow as tf
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    server = tf.distribute.Server(cluster, job_name=task["type"], task_index=task["index"])
    if me == "worker 0":
        with tf.Graph().as_default():
            with tf.device("/job:worker/task:1"):
                total = tf.reduce_sum(tf.random.uniform([1000]))
            with tf.compat.v1.Session(server.target) as session:
                print("sum:", 300 < session.run(total) < 700)
        (here / "done").touch()
    wait_for("done")
    """
    status, out, err = start(code, "--workers=2", preload=None).finish(timeout=150)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "[worker 0] at hand: True True True",
        "[worker 0] sum: True",
        "[worker 1] at hand: True True True",
    ]


@pytest.mark.slow
def test_processes_do_not_share_tensorflows_random_state(start):
    code = """
    import keras
    import tensorflow as tf
    print(float(tf.random.uniform([])), float(keras.random.uniform([])))
    """
    status, out, err = start(code, "--workers=2", preload="tensorflow,keras").finish(timeout=150)
    assert (status, err) == (0, "")
    assert len({number for line in out.splitlines() for number in line.split()[2:]}) == 4
