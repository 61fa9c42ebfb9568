"""What one replica does with a batch in `predict`."""

from __future__ import annotations

import keras


class PredictStep:
    """The outputs of a model, which need not be compiled."""

    def __init__(self, model: keras.Model):
        self.model = model

    def predict(self, batch):
        """The model's outputs for the inputs of one batch."""
        return self.model.predict_step(batch)
