"""Workers run the steps, on variables that parameter servers hold: asynchronously, in lockstep, or on local copies.

Imports `cluster`, `compat`, `runtime`, `input`, `execution` and `layers`; implements `Dispatcher`.
"""
