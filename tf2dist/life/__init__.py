"""Conway's Game of Life and its kin: rules, patterns, and engines that compute generations.

`rule`, `patterns`, `classics`, `words` and `picture` import no TensorFlow.
"""
