"""How functions, arguments and results travel between the notebook and its ranks.

An object becomes a cloudpickle stream, with its tensors and arrays taken out (pickle protocol 5, PEP 574). Small ones
are sent inline. Large ones are written once into an anonymous file in memory (memfd) whose descriptor is passed over
the socket; the other side maps it, so a 200 MB tensor is copied once, and never pushed through a pipe. An anonymous
file needs no room in /dev/shm, which containers make small, and cannot be left behind.
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import sys
import tempfile
import types
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from dtcourse.launch import options

try:
    import cloudpickle
except ImportError:  # the first thing that is missed in a Python that is not the course's
    raise ImportError(options.wrong_python("cloudpickle")) from None

Serialized = tuple[bytes, list[memoryview]]  # the pickle stream, and what was taken out of it
INLINE_LIMIT = 1 << 20  # bytes of buffers that still travel through the pipe
_ALIGNMENT = 64  # so that every dtype may start where its buffer starts
loads: Callable[..., Any] = pickle.loads  # distrust.py puts its own in the place


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with a tensor's bytes as an out-of-band buffer; PyTorch's own reduction keeps them in the stream."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter) and _is_plain(obj):
            return rebuild_tensor, _reduce_tensor(obj)
        # A module of a class of its own (torch.distributed.config) goes by name, as plain ones do. cloudpickle sends
        # one along wherever a function has a name like it and a global that is the package.
        named = isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj
        if named and type(obj) is not types.ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _is_plain(tensor: Any) -> bool:
    import torch

    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not vars(tensor)  # marks that somebody put on it: PyTorch's own way keeps them
    )


def _reduce_tensor(tensor: Any) -> tuple[Any, ...]:
    import torch

    from dtcourse.tensor_bytes import as_bytes

    # A tensor inside an autograd graph arrives as a plain one: the graph stays in the rank.
    own = tensor.detach().resolve_conj().resolve_neg()
    # What expand() shows many times travels once: a dim of stride 0 has one element in memory.
    seen = own[tuple(slice(None if stride else 1) for stride in own.stride())]
    # In the order in which its dims lie in memory, so that a model in channels_last arrives in channels_last.
    laid = seen.permute(sorted(range(own.dim()), key=lambda dim: -own.stride(dim)))
    if not laid.is_contiguous():  # it has gaps, or overlaps itself
        laid = own = own.contiguous()
    # A GPU's tensor arrives on the CPU: the notebook must not open a CUDA context of its own.
    memory: Any = as_bytes(laid).cpu().numpy()
    buffer = pickle.PickleBuffer(memory) if laid.numel() else None
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    requires_grad = tensor.requires_grad and tensor.is_leaf
    return buffer, own.dtype, tuple(own.shape), own.stride(), requires_grad, is_parameter


def rebuild_tensor(
    buffer: Any,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    is_parameter: bool,
) -> Any:
    """A tensor from what `_reduce_tensor` has told of it."""
    import torch

    if buffer is None:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        tensor = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).as_strided(shape, strides)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def serialize(obj: Any) -> Serialized:
    """The pickle stream of `obj` and its out-of-band buffers. Raises what cannot be pickled raises."""
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(obj)
    return stream.getvalue(), [b.raw() for b in buffers]


def size_of(serialized: Serialized) -> int:
    """Bytes that travel."""
    stream, buffers = serialized
    return len(stream) + sum(b.nbytes for b in buffers)


def copied(serialized: Serialized) -> Serialized:
    """The same, apart from the memory that was serialized."""
    stream, buffers = serialized
    return stream, [memoryview(bytearray(buffer)) for buffer in buffers]


class Payload:
    """What is serialized, ready to be sent, to one receiver or to many: the large buffers are written once."""

    def __init__(self, serialized: Serialized) -> None:
        stream, buffers = serialized
        sizes = [b.nbytes for b in buffers]
        self.file: int | None = None
        if sum(sizes) <= INLINE_LIMIT:
            self.header = pickle.dumps((stream, [bytes(b) for b in buffers], None))
            return
        offsets, end = [], 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.file = _anonymous_file(end)
        for buffer, offset in zip(buffers, offsets, strict=True):
            _write(self.file, buffer, offset)
        self.header = pickle.dumps((stream, list(zip(offsets, sizes, strict=True)), end))

    def send(self, connection: Connection) -> None:
        """Sends it once more."""
        connection.send_bytes(self.header)
        if self.file is not None:
            reduction.send_handle(connection, self.file, None)

    def close(self) -> None:
        """Lets go of the memory; those who received it keep theirs."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def send(connection: Connection, obj: Any) -> None:
    """Serializes and sends `obj`."""
    payload = Payload(serialize(obj))
    try:
        payload.send(connection)
    finally:
        payload.close()


def receive(connection: Connection) -> Callable[[], Any]:
    """Takes a payload off the connection; calling what it returns rebuilds the object, which may import, and fail."""
    stream, parts, total = _Header(io.BytesIO(connection.recv_bytes())).load()
    if total is None:
        buffers: list[Any] = [bytearray(part) for part in parts]
    else:
        file = reduction.recv_handle(connection)
        try:
            # ACCESS_COPY: writable, and private to this process once written to.
            mapped = memoryview(mmap.mmap(file, total, access=mmap.ACCESS_COPY))
        finally:
            os.close(file)
        buffers = [mapped[offset : offset + size] for offset, size in parts]
    return lambda: loads(stream, buffers=buffers)


class _Header(pickle.Unpickler):
    """Bytes and numbers, which name nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a payload's header names {module}.{name}")


def _anonymous_file(size: int) -> int:
    """A file without a name, `size` bytes long, in memory where the system can (Linux), else on disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dtcourse-payload", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _write(descriptor: int, buffer: memoryview, offset: int) -> None:
    view = buffer.cast("B")
    while view.nbytes:  # one call writes at most 2 GB on Linux
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
