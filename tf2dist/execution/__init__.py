"""What a training step is, and who runs it.

The interfaces are `train_step_interface.TrainStep` and `dispatcher_interface.Dispatcher`. Here are the steps of Keras
models, and the dispatcher of a process that runs steps itself; the dispatchers of a coordinator are in
`parameter_server`. Imports `compat`, `runtime` and `input`.
"""
