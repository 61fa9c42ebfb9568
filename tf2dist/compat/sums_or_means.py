"""Reads from a graph how a value was computed: as a sum over the examples of a batch, a mean, or from gradients."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

_LINEAR = (
    "Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast", "Sum", "Mean", "Reshape", "Squeeze", "ExpandDims",
    "Pack", "ConcatV2", "StridedSlice", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape",
)  # fmt: skip
_NOT_LINEAR = (
    "Abs", "Exp", "Expm1", "Log", "Log1p", "Maximum", "Minimum", "Pow", "Relu", "Reciprocal", "Rsqrt", "Sigmoid",
    "Softplus", "Sqrt", "Square", "SquaredDifference", "Tanh", "L2Loss",
)  # fmt: skip
_SUMS = ("Sum", "Mean", "L2Loss")
_CHOICES = ("Select", "SelectV2")
_QUOTIENTS = ("RealDiv", "Div", "DivNoNan")
_SIZES = ("Shape", "Size")
_BATCH = {"sum", "mean", "other"}


def terms(value: tf.Tensor, means: Collection[int] = (), constants: Collection[int] = ()) -> set[str]:
    """What a value for the whole batch is the sum of: "sum" (over examples), "mean", "constant", "other".

    "constant" is what depends on variables alone.
    "other" is what is not a linear function of sums and means over the batch, such as the root of a mean. What the
    graph does not show is taken to be a mean.

    Args:
      value: in a graph, of a shape that is fully defined.
      means: ids of tensors that are known to be means, or of one value an example that has their sum as its mean.
      constants: ids of tensors that are the same for all slices.
    """
    known: dict[int, set[str]] = {}

    def of(tensor: tf.Tensor) -> set[str]:
        if id(tensor) not in known:
            if _is_made_of(tensor, constants):
                known[id(tensor)] = {"constant"}
                return known[id(tensor)]
            is_mean = id(tensor) in means or any(id(t) in means for t in tensor.op.inputs if tensor.op.type == "Sum")
            known[id(tensor)] = {"mean"} if is_mean else _kinds(tensor, of)
        return known[id(tensor)]

    return of(value)


def _is_made_of(tensor: tf.Tensor, constants: Collection[int]) -> bool:
    """Is it made of these, at least one, and of variables alone?"""
    seen, left, found = set(), [tensor] if constants else [], False
    while left:
        tensor = left.pop()
        if id(tensor) in constants:
            found = True
        elif tensor.op.name not in seen:
            seen.add(tensor.op.name)
            if tensor.op.type == "Placeholder" and tensor.dtype != tf.resource:
                return False
            left += tensor.op.inputs
    return found


def _kinds(tensor: tf.Tensor, of) -> set[str]:
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    if kind in ("Const", *_SIZES):
        return set()
    if kind == "ReadVariableOp":
        return {"constant"}
    if kind in _QUOTIENTS and _depends_on_size(inputs[1]):
        return {"mean"}
    if not tensor.shape.is_fully_defined():
        return {"mean"}
    if kind in _SUMS and not inputs[0].shape.is_fully_defined():
        return {"mean" if kind == "Mean" else "sum"}
    if not all(t.shape.is_fully_defined() for t in inputs if t.dtype != tf.resource):
        return {"mean"}  # some other way from examples to one value
    found = [of(t) for t in inputs]
    kinds = set().union(*found)
    of_batch = [bool(each & _BATCH) for each in found]
    if not any(of_batch) or kind in _LINEAR:
        return kinds
    if kind in _CHOICES:
        return set().union(*found[1:])
    if kind == "Mul" or kind in _QUOTIENTS:
        is_linear = of_batch != [True, True] and not (kind in _QUOTIENTS and of_batch[1])
        return kinds & _BATCH if is_linear else {"other"}
    return {"other"} if kind in _NOT_LINEAR else {"mean"}


def _depends_on_size(tensor: tf.Tensor) -> bool:
    """Is it computed from the shape of another tensor alone?"""
    seen, left = set(), [tensor.op]
    found = False
    while left:
        operation = left.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type in _SIZES:
            found = True
        elif operation.type == "Placeholder" or operation.type == "ReadVariableOp":
            return False
        else:
            left += [t.op for t in operation.inputs]
    return found


def depends_on(tensor: tf.Tensor, known: Collection[int]) -> str:
    """What a tensor of a graph is made of: "known" if of tensors with these ids, else "data", or "" for neither."""
    seen, left, found = set(), [tensor], ""
    while left:
        tensor = left.pop()
        if id(tensor) in known:
            return "known"
        if not tf.is_symbolic_tensor(tensor) or tensor.op.name in seen:
            continue
        seen.add(tensor.op.name)
        if tensor.op.type == "Placeholder" and tensor.dtype != tf.resource:
            found = "data"
        left += tensor.op.inputs
    return found
