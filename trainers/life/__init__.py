"""Conway's Game of Life and other life-like rules: patterns, engines that compute generations, and output.

Only `engines`, `halo_exchange` and `simulation` import TensorFlow.
"""
