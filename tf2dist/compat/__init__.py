"""Every touch of private parts of TensorFlow and Keras: workarounds, and accessors for what has no public name.

A file for each workaround, with its upstream source or thread. Where the fault can be shown, a test in tests/compat
fails when upstream has mended it. A patch of Keras holds only while a step of ours is traced or run, and only for as
long as the last of several such steps: a `keras.Model.fit` beside `tf2dist.fit` runs unchanged. How a process
that leads parameter servers calls them is replaced for as long as it is connected to them, which TensorFlow has no way
to end but with the process (`cancellation_per_thread`, `eager_operations`, `executor_per_thread`,
`gil_released_calls`), and so is how AutoGraph loads its code, from any `make_strategy` on
(`autograph_temporary_files`). A strategy, an optimizer or a model that trains with us keeps what is set on that object
(`central_storage`, `atomic_counter`, `model_methods`), and the connection to servers who is told of a new one
(`eager_context`). Imports nothing of this project but `tf2dist.errors`.
"""
