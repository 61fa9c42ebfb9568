"""`fit`, `evaluate` and `predict`: the loop of epochs, callbacks, checkpoints, and what is refused before it begins."""
