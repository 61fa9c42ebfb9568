"""An embedding whose table is sharded over the parameter servers.

`keras.layers.Embedding` keeps its table in one variable, hence on one server, and a worker reads all of it to look up a
few rows. Here the table is cut into *shards*, ordinary Keras variables, on the
servers in turn. (TensorFlow's `variable_partitioner` makes variables that Keras 3 cannot use: they have no
`handle`.) A worker reads from each server only the rows that a batch needs, each once, and sends back their gradients.
"""

# Keras ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeStubs=false, reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import contextlib
import copy
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.initializers import RandomInitializer, compute_fans
from tf2dist.compat.server_placement import in_turn
from tf2dist.compat.strategy_internals import server_count


@keras.saving.register_keras_serializable("tf2dist")
class ShardedEmbedding(keras.layers.Layer):
    """`keras.layers.Embedding` with its table cut into shards: row i is row `i // shards` of shard `i % shards`.

    Neighbours are on different servers, so that a vocabulary in the order of frequency keeps all of them equally
    busy. Forward values and gradients are those of `keras.layers.Embedding` with the same table. A gradient
    is a `tf.IndexedSlices` for each shard, with every row that the batch uses in it once, its summed
    gradient: so optimizers that square gradients (Adagrad, Adam, RMSprop) are right about ids that a batch holds
    several times, where slices with repeated rows would have them add up squares instead of squaring sums. Where
    several replicas make an update together (mirrored, central, multiworker) gradients are dense: each has the table.

    How much of a table an update reads and writes is up to the optimizer of Keras. `SGD` without momentum touches
    the rows of the gradient only. `Adagrad`, `Adadelta` and `RMSprop` without momentum write the rows of the gradient
    to the table, but compute with accumulators of its full size; `Adam`, momentum and the others write all of it. They
    do so on the servers, where the table is, and send nothing of that size. Weight decay, `use_ema`, a regularizer
    and `ParameterServer(local_steps=...)` are for small tables: they read all of them in every update. What an
    optimizer takes from a variable as a whole it takes from each shard by itself: the norm of `clipnorm`, the ratio
    of `Lamb`, the factors of `Adafactor`. (`global_clipnorm` is that of all gradients.)

    Shards are initialized one by one, each on its server, with seeds of their own, so that no machine ever holds the
    whole table. An initializer whose scale depends on the shape (Glorot, He, LeCun) scales by the shape of the whole
    table. One that is a function, or a class without a `seed` in its config, is called once for each shard and must
    not return equal values. A table in one shard begins as `keras.layers.Embedding` does.

    Args:
      input_dim, output_dim: rows and columns of the table.
      embeddings_initializer: as in Keras; not one that makes a matrix as a whole (orthogonal, identity).
      embeddings_regularizer: as in Keras; a sum over the elements or rows, as L1 and L2 are.
      embeddings_constraint: as in Keras; of each row or element by itself, as `MaxNorm(axis=1)` and `NonNeg` are.
      mask_zero: as in Keras: id 0 is padding, and later layers get a mask.
      weights: f[input_dim, output_dim], the initial table.
      shards: how many; if not given, the number of parameter servers of the strategy in whose scope the layer is
        built, 1 in others, at most one a row. Saved with the layer: elsewhere it has as many.

    Attributes:
      embeddings: the shards, `keras.Variable`s of f[ceil((input_dim - s) / shards), output_dim].

    Input: i32 or i64 ids of any shape, also ragged; other types are cast to i32.
    Output: f[*shape of the ids, output_dim] in the compute dtype.

    Raises:
      ValueError: arguments that cannot be, or that a table in several shards cannot have.
      tf.errors.InvalidArgumentError: while running, an id outside of 0 ... input_dim - 1 (a negative id is one, where
        `keras.layers.Embedding` counts from the end). XLA leaves checks out and takes some other row.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        shards: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in {"input_dim": input_dim, "output_dim": output_dim, "shards": shards}.items():
            if name == "shards" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, found {value!r}")
        if shards is not None and shards > input_dim:
            raise ValueError(f"shards={shards} are more than the {input_dim} rows of the table; have at most one a row")
        super().__init__(**kwargs)
        self.input_dim, self.output_dim, self.shards = input_dim, output_dim, shards
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = self.supports_masking = mask_zero
        self.autocast = False  # rows are cast after the lookup, and the gradients of repeated ones summed before
        self.embeddings: list[keras.Variable] = []
        if weights is not None:
            self.build()
            self.set_table(weights[0] if isinstance(weights, list) and len(weights) == 1 else weights)

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        if self.shards is None:
            self.shards = min(_server_count(), self.input_dim)
        if self.shards > 1:
            _check_shardable(self.embeddings_regularizer, self.embeddings_constraint)
        with in_turn() if self.shards > 1 else contextlib.nullcontext():
            self.embeddings = [
                self.add_weight(
                    name="embeddings" if self.shards == 1 else f"embeddings_{shard}",
                    shape=(len(self._row_ids(shard)), self.output_dim),
                    initializer=self._initializer(shard),
                    regularizer=self.embeddings_regularizer,
                    constraint=self.embeddings_constraint,
                )
                for shard in range(self.shards)
            ]
        self.built = True

    def _row_ids(self, shard: int) -> range:
        """Returns the rows of the table that this shard holds, in its order."""
        assert self.shards is not None  # it is built
        return range(shard, self.input_dim, self.shards)

    def _initializer(self, shard: int) -> Any:
        initializer = self.embeddings_initializer
        if self.shards == 1:
            return initializer
        if isinstance(initializer, (keras.initializers.Orthogonal, keras.initializers.Identity)):
            raise ValueError(
                f"embeddings_initializer={type(initializer).__name__} makes a matrix as a whole, and the table is cut "
                f"into {self.shards} shards; use another, or shards=1"
            )
        if isinstance(initializer, keras.initializers.Constant) and np.ndim(initializer.value) == 2:
            return keras.initializers.Constant(np.asarray(initializer.value)[self._row_ids(shard)])
        if isinstance(initializer, RandomInitializer):
            initializer = copy.copy(initializer)
            if isinstance(initializer.seed, int):  # else a generator, which gives each call another seed
                initializer.seed = _shard_seed(initializer.seed, shard)
            if isinstance(initializer, keras.initializers.VarianceScaling):
                part = (len(self._row_ids(shard)), self.output_dim)
                initializer.scale *= _fan(initializer, part) / _fan(initializer, (self.input_dim, self.output_dim))
            return initializer
        config = initializer.get_config() if hasattr(initializer, "get_config") else {}
        if isinstance(config.get("seed"), int):
            return type(initializer).from_config({**config, "seed": _shard_seed(config["seed"], shard)})
        return initializer

    def call(self, inputs: Any) -> Any:
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        ids = keras.ops.convert_to_tensor(inputs, sparse=False)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)
        flat = tf.reshape(ids, [-1])
        with tf.control_dependencies([self._assert_in_range(flat)]):
            # Each distinct row is sent once, and so is the sum of its gradients.
            distinct, positions = tf.unique(flat)
        rows, order = self._look_up(distinct)
        positions = positions if order is None else tf.gather(order, positions)
        outputs = tf.gather(rows, tf.reshape(positions, tf.shape(ids)))
        outputs.set_shape([*ids.shape, self.output_dim])
        return tf.cast(outputs, self.compute_dtype)

    def _look_up(self, ids: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the rows of ids i[n], f[n, output_dim], shard after shard, and each id's position in them i32[n]."""
        if self.shards == 1:
            return tf.gather(_gatherable(self.embeddings[0]), ids), None
        shards = tf.cast(ids % self.shards, tf.int32)
        parts = tf.dynamic_partition(ids // self.shards, shards, self.shards)
        rows = tf.concat([tf.gather(_gatherable(e), p) for e, p in zip(self.embeddings, parts, strict=True)], 0)
        # Counting, unlike sorting or scattering, works in XLA for a number of ids that is not known when compiling.
        mine = tf.cast(shards[:, tf.newaxis] == tf.range(self.shards), tf.int32)
        first = tf.cumsum(tf.reduce_sum(mine, 0), exclusive=True)
        return rows, tf.reduce_sum(mine * (first + tf.cumsum(mine, 0) - 1), 1)

    def _assert_in_range(self, ids: tf.Tensor) -> Any:
        # ~i falls where i rises. GPUs have a kernel for the largest of 64-bit integers, and none for the least.
        low, high = tf.bitwise.invert(tf.reduce_max(tf.bitwise.invert(ids))), tf.reduce_max(ids)
        inside = tf.logical_or(tf.equal(tf.size(ids), 0), tf.logical_and(low >= 0, high < self.input_dim))
        # 32-bit integers: an Assert on 64-bit ones becomes a conditional, which costs more.
        found = [tf.saturate_cast(low, tf.int32), tf.saturate_cast(high, tf.int32)]
        said = f"{self.name}: ids must be from 0 to {self.input_dim - 1}, found some from", found[0], "to", found[1]
        with tf.device("/cpu:0"):  # of this host: strings are on no GPU
            return tf.debugging.Assert(inside, said)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        shape, ragged = self.compute_output_shape(inputs.shape), getattr(inputs, "ragged", False)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    def get_table(self) -> np.ndarray:
        """Returns the whole table f[input_dim, output_dim], in this process's memory."""
        shards = [keras.ops.convert_to_numpy(e) for e in self.embeddings]
        table = np.empty((self.input_dim, self.output_dim), shards[0].dtype)
        for number, shard in enumerate(shards):
            table[number :: self.shards] = shard
        return table

    def set_table(self, table: Any) -> None:
        """Sets the whole table, for example from a `keras.layers.Embedding`: `layer.set_table(other.embeddings)`.

        Args:
          table: f[input_dim, output_dim], anything that NumPy can convert to an array.

        Raises:
          ValueError: the table has another shape.
        """
        if not self.built:
            self.build()
        table = keras.ops.convert_to_numpy(table)
        if table.shape != (self.input_dim, self.output_dim):
            raise ValueError(
                f"{self.name}: the table is f[{self.input_dim}, {self.output_dim}], found shape {list(table.shape)}"
            )
        for number, shard in enumerate(self.embeddings):
            shard.assign(table[number :: self.shards])

    def load_own_variables(self, store: Any) -> None:
        """Loads a saved table, also one with another number of shards (called by Keras)."""
        saved = len(store.keys())
        if saved in (0, len(self.embeddings)):
            super().load_own_variables(store)
            return
        pieces = [np.asarray(store[str(shard)]) for shard in range(saved)]
        table = np.empty((self.input_dim, self.output_dim), pieces[0].dtype)
        for shard, rows in enumerate(pieces):
            if rows.shape != table[shard::saved].shape:
                raise ValueError(
                    f"{self.name}: the table is f[{self.input_dim}, {self.output_dim}], and shard {shard} of {saved} "
                    f"of the saved one has shape {list(rows.shape)}, not {list(table[shard::saved].shape)}"
                )
            table[shard::saved] = rows
        self.set_table(table)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "shards": self.shards,
        }


def _server_count() -> int:
    """Returns the number of parameter servers of the strategy in scope; 1 for other strategies."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 1
    return server_count(strategy)


def _gatherable(shard: keras.Variable) -> Any:
    """Returns what rows are gathered from: the TensorFlow variable, because a Keras variable would be read whole."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return shard.value
    # Synchronous replicas all-reduce their gradients. IndexedSlices vary in length, and TensorFlow's collectives abort
    # when the length changes in a loop ("Shape mismatch in the collective instance").
    return _with_dense_gradient(tf.convert_to_tensor(shard.value))


@tf.custom_gradient
def _with_dense_gradient(table: tf.Tensor) -> Any:
    return tf.identity(table), tf.convert_to_tensor


def _shard_seed(seed: int, shard: int) -> int:
    """Derives a shard's seed from the seed of the table."""
    return int(np.random.SeedSequence([seed % 2**64, shard]).generate_state(1)[0] >> 1)


def _fan(initializer: keras.initializers.VarianceScaling, shape: tuple[int, int]) -> float:
    """Returns what the initializer divides the variance by, for a matrix of this shape."""
    fan_in, fan_out = compute_fans(shape, input_axes=initializer.input_axes, output_axes=initializer.output_axes)
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    return max(1.0, fans[initializer.mode])


def _check_shardable(regularizer: Any, constraint: Any) -> None:
    """Tests on a few rows whether regularizer and constraint give the same for shards as for the whole table.

    Raises:
      ValueError: they do not.
    """
    with tf.init_scope(), tf.device("/cpu:0"):
        whole = tf.constant([[3.0, -1.0], [-0.5, 2.0], [1.5, 4.0], [-2.5, 0.25]])
        parts = [whole[0::2], whole[1::2]]
        if regularizer is not None and not np.allclose(regularizer(whole), sum(regularizer(p) for p in parts)):
            raise ValueError(
                f"embeddings_regularizer={type(regularizer).__name__} of a table is not the sum of those of its "
                "shards; use one that adds up, as L1 and L2 do, or shards=1"
            )
        scales = (1e-3, 1.0, 1e3)  # a limit may be far from the numbers
        if constraint is not None and not all(
            np.allclose([constraint(s * p) for p in parts], [constraint(s * whole)[0::2], constraint(s * whole)[1::2]])
            for s in scales
        ):
            raise ValueError(
                f"embeddings_constraint={type(constraint).__name__} looks at rows together, which are in several "
                "shards; use one of single rows or elements (axis=1), or shards=1"
            )
