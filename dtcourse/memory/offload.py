"""Activation offload: what autograd saves waits in host memory between forward and backward.

    with offload_activations():
        loss = criterion(model(x), y)
    loss.backward()

The first layers' activations wait longest, and nobody needs them meanwhile. Saved-tensor hooks copy each saved storage
to the host, beside the computation, and let it go; backward fetches it back, and starts fetching the one that was
saved before it, which is the next that it will need. Nothing is computed twice: the price is bandwidth.
Source: Rhu et al., vDNN (arXiv 1602.08124); Ren et al., ZeRO-Offload (arXiv 2101.06840).

Device memory: the copies under way, a few storages. Host memory: all activations. Bytes: each once out and once in.
It hides behind the computation where bytes / bandwidth of the link is less than FLOPs / speed of the device. A GPU
copies to pinned host memory, on a stream of its own. On a CPU, where host and device are one memory, the host is a
temporary file and the stream a thread: the same code, and memory is really given back.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from dtcourse import device, events
from dtcourse.plural import plural
from dtcourse.torch_private import base_of, version_of


class offload_activations(saved_tensors_hooks):
    """Offloads what is saved while it is entered.

    minimum_bytes: smaller storages stay
    prefetch:      how many storages backward fetches ahead of the one that it needs
    pending:       how many copies to the host may be under way before the computation waits for the oldest
    folder:        where a CPU's temporary file goes; None: the system's folder for such files

    Parameters stay, since they are there anyway, and so does what its owner computes with all the time: views of them.
    Afterwards `bytes` has been sent out, `fetched` has come back, in bytes.
    """

    def __init__(
        self,
        minimum_bytes: int = 1024,
        prefetch: int = 1,
        pending: int = 2,
        folder: str | Path | None = None,
    ) -> None:
        if prefetch < 0 or pending < 1:
            raise ValueError(f"prefetch is at least 0 and pending 1; got {prefetch} and {pending}")
        self.minimum_bytes, self.prefetch, self.pending = minimum_bytes, prefetch, pending
        self.bytes = self.fetched = 0
        self._folder = folder
        self._streams: dict[torch.device, device.SideStream] = {}
        self._file: _File | None = None
        self._order: list[weakref.ref[_Stored]] = []  # as they were saved
        self._known: dict[int, tuple[weakref.ref[Any], int, weakref.ref[_Stored]]] = {}
        self._under_way: deque[Callable[[], None]] = deque()
        super().__init__(self._pack, self._unpack)

    def __enter__(self) -> offload_activations:  # type: ignore[override]
        super().__enter__()
        return self

    # --- forward ----------------------------------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        if tensor.layout != torch.strided:  # sparse tensors have no storage of their own
            return tensor
        owner = base_of(tensor)
        owner = tensor if owner is None else owner
        storage = tensor.untyped_storage()
        if (owner.is_leaf and owner.requires_grad) or storage.nbytes() < self.minimum_bytes:
            return tensor
        stored = self._store(storage, version_of(tensor))
        size, stride, offset = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        return _Packed(stored, tensor.dtype, size, stride, offset)

    def _store(self, storage: torch.UntypedStorage, version: int) -> _Stored:
        """The storage's copy on the host. One that several operations save is sent once."""
        key = id(storage)
        known = self._known.get(key)
        if known is not None and known[1] == version:
            stored = known[2]()
            if stored is not None:
                return stored
        stored = _Stored(self._host_buffer(storage), len(self._order), storage.device)
        self._order.append(weakref.ref(stored))
        forget = self._known.pop
        self._known[key] = (
            weakref.ref(storage, lambda _: forget(key, None)), version, weakref.ref(stored)
        )  # fmt: skip
        source = bytes_of(storage)
        buffer = stored.buffer
        wait = self._stream(storage.device).run(
            lambda: buffer.write(source),
            uses=[source],
            finished=recorder("offload", buffer.size, stored.number),
        )
        stored.stored = wait
        self._under_way.append(wait)
        while len(self._under_way) > self.pending:
            self._under_way.popleft()()
        self.bytes += buffer.size
        return stored

    def _host_buffer(self, storage: torch.UntypedStorage) -> _Pinned | _FileRegion:
        if device.is_gpu(storage.device):
            return _Pinned(storage.nbytes())
        if self._file is None:
            self._file = _File(self._folder)
        return _FileRegion(self._file, storage.nbytes())

    def _stream(self, where: torch.device) -> device.SideStream:
        if where not in self._streams:
            self._streams[where] = device.SideStream(where)
        return self._streams[where]

    # --- backward ---------------------------------------------------------------------------------------------

    def _unpack(self, packed: torch.Tensor | _Packed) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        stored = packed.stored
        if stored.whole is None:
            self._fetch(stored)
            self._fetch_before(stored.number)
            stored.fetched()
            stored.arrive()
        else:
            self._fetch_before(stored.number)
        whole = stored.hand_over(packed)
        result = torch.empty(0, dtype=packed.dtype, device=whole.device)
        return result.set_(whole, packed.offset, packed.size, packed.stride)

    def _fetch(self, stored: _Stored) -> None:
        """Starts the copy back to the device, if that has not been done."""
        if stored.coming is not None:
            return
        stored.stored()  # an error on the way out is raised here
        # Allocated here, by the computation: on a GPU the memory belongs to its stream.
        stored.coming = torch.empty(stored.buffer.size, dtype=torch.uint8, device=stored.device)
        buffer, target = stored.buffer, stored.coming
        stored.fetched = self._stream(stored.device).run(
            lambda: buffer.read(target),
            uses=[target],
            finished=recorder("fetch", buffer.size, stored.number),
        )
        self.fetched += buffer.size

    def _fetch_before(self, number: int) -> None:
        """Those saved just before, which backward will need next, as far as anyone still wants them."""
        ahead = 0
        while ahead < self.prefetch and number:
            number -= 1
            stored = self._order[number]()
            if stored is not None and stored.whole is None:
                self._fetch(stored)
                ahead += 1

    def synchronize(self) -> None:
        """Waits for all copies; after it the timeline has them all."""
        for stream in self._streams.values():
            stream.synchronize()


class _Stored:
    """One storage's bytes on the host, and on the device from the first operation of a
    backward that needs it to the last.
    """

    def __init__(self, buffer: _Pinned | _FileRegion, number: int, where: torch.device) -> None:
        self.buffer, self.number, self.device = buffer, number, where
        self.stored: Callable[[], None] = lambda: None  # waits for the way out
        self.fetched: Callable[[], None] = lambda: None  # waits for the way back
        self.coming: torch.Tensor | None = None
        self.whole: torch.UntypedStorage | None = None
        self.savers: set[int] = set()  # the operations' _Packed that live, by id
        self._left: set[int] = set()  # those that have not asked since it came

    def arrive(self) -> None:
        assert self.coming is not None, "it has been fetched"
        self.whole, self.coming = self.coming.untyped_storage(), None
        self._left = set(self.savers)

    def hand_over(self, packed: _Packed) -> torch.UntypedStorage:
        assert self.whole is not None, "it has arrived"
        whole = self.whole
        self._done(id(packed))
        return whole

    def forget(self, packed: _Packed) -> None:
        self.savers.discard(id(packed))
        self._done(id(packed))

    def _done(self, which: int) -> None:
        self._left.discard(which)
        if not self._left:
            self.whole = None


class _Packed:
    """What autograd keeps: which storage, and how the tensor lies in it."""

    def __init__(
        self, stored: _Stored, dtype: torch.dtype, size: Any, stride: Any, offset: int
    ) -> None:
        self.stored, self.dtype, self.size, self.stride = stored, dtype, size, stride
        self.offset = offset
        stored.savers.add(id(self))

    def __del__(self) -> None:
        self.stored.forget(self)


class _Pinned:
    """Host memory that a GPU can copy to and from by itself."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def write(self, source: torch.Tensor) -> None:
        self._memory.copy_(source, non_blocking=True)

    def read(self, target: torch.Tensor) -> None:
        target.copy_(self._memory, non_blocking=True)


class _File:
    """A temporary file without a name, which ends with the process at the latest; its space is used again."""

    def __init__(self, folder: str | Path | None) -> None:
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- lives as long as its regions
        self._end, self._free = 0, {}  # type: ignore[var-annotated]

    def take(self, size: int) -> int:
        """The offset of `size` bytes that nobody uses."""
        if self._free.get(size):
            return self._free[size].pop()
        self._end += size
        return self._end - size

    def give_back(self, size: int, offset: int) -> None:
        self._free.setdefault(size, []).append(offset)

    def __del__(self) -> None:
        self.file.close()


class _FileRegion:
    """Some bytes of that file."""

    def __init__(self, file: _File, size: int) -> None:
        self.size, self._file = size, file
        self._offset = file.take(size)

    def write(self, source: torch.Tensor) -> None:
        left, at = source.numpy().data, self._offset
        while left:  # the system may write less than it was asked to
            count = os.pwrite(self._file.file.fileno(), left, at)
            left, at = left[count:], at + count

    def read(self, target: torch.Tensor) -> None:
        left, at = target.numpy().data, self._offset
        while left:
            count = os.preadv(self._file.file.fileno(), [left], at)
            if not count:
                raise OSError(f"the offload file ends {plural(len(left), 'byte')} too early")
            left, at = left[count:], at + count

    def __del__(self) -> None:
        self._file.give_back(self.size, self._offset)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as one tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def recorder(name: str, size: int, number: int) -> Callable[[float, float], None] | None:
    """Records a copy on the side stream once it has run; nothing while recording is off."""
    if not events.recording():
        return None
    more: dict[str, Any] = {"bytes": size, "lane": "side stream", "detail": {"number": number}}
    return lambda start, end: events.add(name, "memory", start, end, **more)
