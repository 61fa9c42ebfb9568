"""Every touch of private parts of TensorFlow and Keras: one file a workaround, with its upstream thread.

Each workaround is guarded by a test in tests/compat that fails when upstream has mended it. A patch of Keras holds
only while a step of ours is traced or run, and only for as long as the last of several such steps: a
`keras.Model.fit` beside `tf2dist.fit` runs unchanged. Imports nothing of this project but `tf2dist.errors`.
"""
