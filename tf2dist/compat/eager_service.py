"""What a coordinator has made on a server, used when the coordinator is gone.

TensorFlow keeps it in a context of the coordinator's on the server, of which nobody else can take hold by its Python
interface. But whoever knows the context's number can send it operations, as the coordinator did, over the service
that every server has (`EagerServiceImpl::Enqueue` in tensorflow/core/distributed_runtime/eager/eager_service_impl.cc,
messages in tensorflow/core/protobuf/eager_service.proto). The context is there until nobody has used it for ten
minutes. Resources are found by name: the coordinator has left their handles in a staging area (`Stage`).
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from tf2dist.compat.executor_per_thread import in_own_executor

_METHOD = "/tensorflow.eager.EagerService/Enqueue"
_INLINE = -1  # the number of an operation whose result is the answer
_MOST_IDS = 1 << 30  # TensorFlow keeps 32 bits of them
_STAGED = {"container": b"", "capacity": 0, "memory_limit": 0}


class ContextLostError(Exception):
    """A server does not do what it is asked to; the message says which, and why."""


def context_id() -> int:
    """The number of this process's context on the servers that it is connected to, from 0 to 2**64 - 1."""
    return pywrap_tfe.TFE_GetContextId(context.context()._context_handle) % 2**64


def leave(name: str, device: str, tensors: Sequence[tf.Tensor]) -> None:
    """Leaves tensors, such as handles of variables, in this context on a server, where `LeftContext` finds them.

    Args:
      name: of what is left; what was left there before by this name is dropped.
      device: of the server, on its CPU.
      tensors: at least one; resources stay where they are, and live as long as this.

    Raises:
      tf.errors.OpError: the server is lost.
    """
    dtypes = [t.dtype for t in tensors]
    with in_own_executor(), tf.device(device):
        tf.raw_ops.StageClear(dtypes=dtypes, shared_name=name)
        tf.raw_ops.Stage(values=list(tensors), shared_name=name)


def drop(name: str, device: str) -> None:
    """Drops what was left by this name, if anything was.

    Raises:
      tf.errors.OpError: the server is lost.
    """
    with in_own_executor(), tf.device(device):
        tf.raw_ops.StageClear(dtypes=[], shared_name=name)


@dataclass(frozen=True)
class Result:
    """A result of an operation, on the server."""

    operation: int
    number: int
    device: str


class LeftContext:
    """The context of a coordinator that is gone, on one server.

    Args:
      address: of the server, "host:port".
      context_id: what `context_id` was in the coordinator.
      device: of the server's CPU, in full, as "/job:ps/replica:0/task:0/device:CPU:0".
      seconds: that the server has to answer each call.
    """

    def __init__(self, address: str, context_id: int, device: str, seconds: float):
        import grpc  # by far not every process needs it

        self._address, self._context_id, self._device, self._seconds = address, context_id, device, seconds
        # A proxy for the web does not lead to a server of the job.
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._request, response = _messages()
        self._call = self._channel.unary_unary(
            _METHOD, request_serializer=self._request.SerializeToString, response_deserializer=response.FromString
        )
        # Of operations. The coordinator's are not negative; who comes twice is not to find its own results of before.
        self._ids: Iterator[int] = itertools.count(-2 - secrets.randbelow(_MOST_IDS), -1)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def find(self, name: str, dtypes: Sequence[tf.DType]) -> list[Result]:
        """What was left by this name, of these dtypes.

        Raises:
          ContextLostError: as all methods; also where nothing was left, when the time is up.
        """
        return self._run("StagePeek", [0], len(dtypes), dtypes=list(dtypes), shared_name=name.encode(), **_STAGED)

    def read(self, handle: Result, dtype: tf.DType) -> Result:
        """The value of a variable."""
        return self._run("ReadVariableOp", [handle], 1, dtype=dtype)[0]

    def assign(self, handle: Result, value: np.ndarray) -> None:
        """Gives a variable a value."""
        dtype = tf.as_dtype(value.dtype)
        self._run("AssignVariableOp", [handle, value], 0, dtype=dtype, validate_shape=False)

    def fetch(self, result: Result, dtype: tf.DType) -> np.ndarray:
        """A result of numbers, as an array."""
        response = self._send(_INLINE, "Identity", [result], {"T": dtype})
        return tf.make_ndarray(response.queue_response[0].tensor[0])

    def save(
        self, prefix: str, names: Sequence[str], values: Sequence[Result], dtypes: Sequence[tf.DType], seconds: float
    ) -> None:
        """Writes values to files, by names, as `tf.raw_ops.SaveV2`; by the server, on its disk, in so many seconds."""
        inputs = [prefix, list(names), [""] * len(names), *values]
        self._send(next(self._ids), "SaveV2", inputs, {"dtypes": list(dtypes)}, seconds)

    def _run(self, name: str, inputs: Sequence[Any], count: int, **attributes: Any) -> list[Result]:
        number = next(self._ids)
        self._send(number, name, inputs, attributes)
        return [Result(number, n, self._device) for n in range(count)]

    def _send(
        self, number: int, name: str, inputs: Sequence[Any], attributes: dict[str, Any], seconds: float = 0.0
    ) -> Any:
        import grpc

        request = self._request(context_id=self._context_id)
        operation = request.queue.add().operation
        operation.id, operation.name, operation.device = number, name, self._device
        for given in inputs:
            place = operation.op_inputs.add()
            if isinstance(given, Result):
                handle = place.remote_handle
                handle.op_id, handle.output_num = given.operation, given.number
                handle.device = handle.op_device = given.device
            else:
                place.tensor.CopyFrom(tf.make_tensor_proto(given))
        for key, value in attributes.items():
            _set_attribute(operation.attrs[key], value)
        try:
            return self._call(request, timeout=seconds or self._seconds)
        except grpc.RpcError as error:
            said: Any = error
            why = f"{said.code().name}: {' '.join((said.details() or '').split())}"
            raise ContextLostError(f"{self._address} has not done {name}: {why}") from None


def _set_attribute(attribute: Any, value: Any) -> None:
    if isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, bytes):
        attribute.s = value
    elif isinstance(value, tf.DType):
        attribute.type = value.as_datatype_enum
    else:
        attribute.list.type.extend(dtype.as_datatype_enum for dtype in value)


@functools.cache
def _messages() -> tuple[Any, Any]:
    """The classes of a request and its response: those parts of TensorFlow's messages that are used here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorflow.core.framework import attr_value_pb2, tensor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    package = "tf2dist.eager_service"
    files = [attr_value_pb2.DESCRIPTOR.name, tensor_pb2.DESCRIPTOR.name]
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(files)

    def message(name: str, *fields: tuple[str, int, Any], within: Any = file.message_type) -> Any:
        made = within.add(name=name)
        for field_name, number, kind in fields:
            repeated = isinstance(kind, list)
            (kind,) = kind if repeated else [kind]
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field = made.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = kinds.TYPE_MESSAGE, kind if "tensorflow" in kind else f".{package}.{kind}"
            else:
                field.type = kind
        return made

    integer, text = kinds.TYPE_INT64, kinds.TYPE_STRING
    tensor = ".tensorflow.TensorProto"
    message(
        "Handle", ("op_id", 1, integer), ("output_num", 2, kinds.TYPE_INT32), ("device", 3, text),
        ("op_device", 4, text),
    )  # fmt: skip
    message("Input", ("remote_handle", 1, "Handle"), ("tensor", 2, tensor))
    operation = message(
        "Operation", ("id", 1, integer), ("name", 2, text), ("op_inputs", 10, ["Input"]),
        ("attrs", 5, ["Operation.AttrsEntry"]), ("device", 6, text),
    )  # fmt: skip
    entry = message("AttrsEntry", ("key", 1, text), ("value", 2, ".tensorflow.AttrValue"), within=operation.nested_type)
    entry.options.map_entry = True
    message("Item", ("operation", 2, "Operation"))
    message("Request", ("context_id", 1, kinds.TYPE_FIXED64), ("queue", 3, ["Item"]))
    message("Answer", ("tensor", 2, [tensor]))
    message("Response", ("queue_response", 1, ["Answer"]))
    pool = descriptor_pool.Default()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"{package}.{name}") for name in ("Request", "Response")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])
