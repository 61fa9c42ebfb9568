"""User data as batches: arrays, datasets and functions, cut into one slice for each replica.

The interface is `data_adapter.DataAdapter`; `make_adapter` chooses the implementation. Imports `compat` at most.
"""
