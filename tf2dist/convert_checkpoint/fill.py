"""Fills a built Keras 3 model and its optimizer from a checkpoint of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tf2dist.compat.model import layers_of
from tf2dist.convert_checkpoint import ConvertError, match_variables
from tf2dist.convert_checkpoint.read import Checkpoint
from tf2dist.layers.sharded_embedding import ShardedEmbedding


@dataclass(frozen=True)
class Place:
    """One array of the checkpoint in the model: a variable, or the shards of a table.

    Attributes:
      path: of the variable, without the model's name.
      shape: of the whole.
      variables: one, or the shards.
      is_table: are its rows looked up?
    """

    path: str
    shape: match_variables.Shape
    variables: list[Any]
    is_table: bool = False

    @property
    def dtype(self) -> str:
        return keras.backend.standardize_dtype(self.variables[0].dtype)

    def put(self, array: np.ndarray, into=None) -> None:
        """Sets the variables, or others in their place, which are cut in the same way."""
        into = into or self.variables
        for number, variable in enumerate(into):
            variable.assign(array[number :: len(into)] if len(into) > 1 else array)


def fill(
    model: keras.Model,
    prefix: str,
    given: Mapping[str, str],
    *,
    averages: bool = False,
    lookup: str | None = None,
) -> list[str]:
    """Fills a model's weights, its optimizer's variables and its count of updates; returns a report's lines.

    Args:
      model: built.
      prefix: of the checkpoint, as "DIR/model.ckpt-1000".
      given: names in the checkpoint by the paths of the model's variables; for others, `match_variables.match` decides.
      averages: take the moving averages as the weights.
      lookup: "mod" or "div": how `tf.nn.embedding_lookup` was told to look up rows of partitioned tables.

    Raises:
      ConvertError: the checkpoint is damaged or of another model. The model is then as it was.
    """
    if not getattr(model, "built", False) or not model.weights:
        raise ConvertError(f"the model {getattr(model, 'name', model)!r} has no weights yet; give it an Input")
    checkpoint = Checkpoint(prefix)
    places = {place.path: place for place in _places(model)}
    found = {n: s for n, s in checkpoint.shapes.items() if not match_variables.is_slot(n, checkpoint.shapes)}
    candidates = {n: s for n, s in found.items() if n not in _COUNTS}
    matches = match_variables.match({path: place.shape for path, place in places.items()}, candidates, given)

    if wrong := [(path, pair.name) for path, pair in matches.items() if checkpoint.dtypes[pair.name] == "string"]:
        raise ConvertError(
            "\n".join(f"{p} is {places[p].dtype} in the model, and {n} in the checkpoint holds text" for p, n in wrong)
        )

    tables = {path: pair.name for path, pair in matches.items() if places[path].is_table}
    cut = [name for name in tables.values() if name in checkpoint.partitions]
    if cut and lookup is None:
        raise ConvertError(
            f"the checkpoint {prefix} holds {', '.join(cut)} in partitions, and not how their rows were looked up: say "
            "--lookup=div if tf.nn.embedding_lookup was told so, else --lookup=mod, its default"
        )

    def read(name: str, path: str) -> np.ndarray:
        array = checkpoint.get(name)
        if path in tables and lookup == "mod":
            array = _by_row(array, checkpoint.partitions.get(name, 1))
        return array

    lines, todo, used = [], [], set()
    for path, pair in matches.items():
        place = places[path]
        name = f"{pair.name}/{_AVERAGE}" if averages and f"{pair.name}/{_AVERAGE}" in checkpoint.shapes else pair.name
        used |= {pair.name, name}
        todo.append((place, None, read(name, path), ""))
        other = f", from {checkpoint.dtypes[name]}" * (checkpoint.dtypes[name] != place.dtype)
        lines.append(f"{path}  {list(place.shape)}  <- {name}  by {pair.why}{other}")
    if averages and not any(name.endswith(f"/{_AVERAGE}") for name in used):
        raise ConvertError(f"the checkpoint {prefix} has no moving averages: no variable there ends in /{_AVERAGE}")
    begin_at_weights: list[tuple[Any, Any]] = []
    moments_anew = False  # Adam's
    for slot, kept in _kept(model):
        for path, pair in matches.items():
            name = f"{pair.name}/{slot}"
            if not all(id(v) in kept for v in places[path].variables):
                continue
            into = [kept[id(v)] for v in places[path].variables]
            if checkpoint.shapes.get(name) != places[path].shape:
                begins = "average begins at the weights" if slot == _AVERAGE else "begins anew"
                lines.append(f"{path}  the optimizer's {begins}: there is no {name} of its shape")
                moments_anew = moments_anew or slot in ("Adam", "Adam_1")
                if slot == _AVERAGE:
                    begin_at_weights += zip(into, places[path].variables, strict=True)
                continue
            used.add(name)
            todo.append((places[path], into, read(name, path), slot))
            lines.append(f"{path}  the optimizer's  <- {name}")
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and "global_step" in checkpoint.shapes:
        used.add("global_step")
        step = checkpoint.get("global_step")
        todo.insert(0, (Place("iterations", (), [optimizer.iterations]), None, step, ""))
        lines.append(f"optimizer.iterations  <- global_step, {step}")
        if moments_anew and step > 0:
            lines.append(
                f"Adam corrects for moments that begin anew at step 0 only, and they do at {step}: its first updates "
                "are several times as large as they should be; optimizer.iterations.assign(0) makes it begin anew too"
            )
    elif optimizer is not None:
        lines.append("optimizer.iterations begins at 0: there is no global_step")
    for place, into, array, slot in todo:  # only now, when all of it has been read
        if slot == "Momentum":  # TensorFlow 1 kept the sum of gradients, Keras what it adds to the weights
            rate = keras.ops.convert_to_numpy(model.optimizer.learning_rate)  # a number too, where a function gives it
            array = array * -float(rate)  # of the step that comes next
        place.put(array, into)
    for average, variable in begin_at_weights:
        average.assign(variable)
    for path, pair in matches.items():
        if path not in tables and pair.name in checkpoint.partitions:
            parts = checkpoint.partitions[pair.name]
            lines.append(f"{path}  {parts} partitions one after the other, as they were if its rows were not looked up")
    if left := [name for name in checkpoint.shapes if name not in used]:
        lines.append(f"not used: {', '.join(left)}")
    return lines


def _by_row(array: np.ndarray, partitions: int) -> np.ndarray:
    """The rows of a table in their order, of partitions one after the other to which they went in turn."""
    rows, begin = np.empty_like(array), 0
    for number in range(partitions):
        part = rows[number::partitions]
        part[:] = array[begin : begin + len(part)]
        begin += len(part)
    return rows


_AVERAGE = "ExponentialMovingAverage"
_COUNTS = ("global_step", "beta1_power", "beta2_power")


def _places(model: keras.Model) -> Iterator[Place]:
    """The model's weights by path, without its own name; a table in shards is one, as it was in the checkpoint."""
    shards, tables = {}, set()
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Embedding):
            tables.add(id(layer.embeddings))
        if isinstance(layer, ShardedEmbedding) and len(layer.embeddings) == 1:
            tables.add(id(layer.embeddings[0]))
        elif isinstance(layer, ShardedEmbedding):
            shape = (layer.input_dim, layer.output_dim)
            path = f"{layer.embeddings[0].path.rpartition('/')[0]}/embeddings"
            table = Place(path.removeprefix(f"{model.name}/"), shape, layer.embeddings, True)
            shards |= {id(shard): table for shard in layer.embeddings}
    done = set()
    for variable in model.weights:
        path = variable.path.removeprefix(f"{model.name}/")
        place = shards.get(id(variable)) or Place(path, tuple(variable.shape), [variable], id(variable) in tables)
        if place.path not in done:
            done.add(place.path)
            yield place


def _kept(model: keras.Model) -> Iterator[tuple[str, dict[int, Any]]]:
    """What the optimizer keeps: for each kind TensorFlow 1's name, and ours by the id of the variable."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    optimizer.build(model.trainable_variables)
    known = {
        keras.optimizers.SGD: [("momentums", "Momentum")],
        keras.optimizers.Adam: [("_momentums", "Adam"), ("_velocities", "Adam_1")],
        keras.optimizers.Adagrad: [("_accumulators", "Adagrad")],
        keras.optimizers.RMSprop: [("_velocities", "RMSProp"), ("_momentums", "RMSProp_1")],
    }
    if getattr(optimizer, "centered", False):  # TensorFlow 1 made its slots in this order
        known[keras.optimizers.RMSprop] = [
            ("_velocities", "RMSProp"), ("_average_gradients", "RMSProp_1"), ("_momentums", "RMSProp_2")
        ]  # fmt: skip
    pairs = next((pairs for kind, pairs in known.items() if isinstance(optimizer, kind)), [])
    for attribute, slot in [*pairs, ("_model_variables_moving_average", _AVERAGE)]:
        kept = getattr(optimizer, attribute, None)
        if kept:
            pairs = zip(model.trainable_variables, kept, strict=False)
            yield slot, {id(v): k for v, k in pairs if k is not None}
