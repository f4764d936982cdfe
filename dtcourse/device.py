"""The one place that says cuda. Everywhere else asks here, so the same code runs on a laptop and on a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

GPU = "cuda"  # the kind, for what is computed of a device that this machine need not have


def count() -> int:
    """GPUs that this process may use. Does not initialise CUDA, so it is safe in a notebook that launches ranks."""
    return torch.cuda.device_count()


def available() -> str:
    """Says "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if count() > 0 else "cpu"


def in_use() -> bool:
    """Whether this process has initialised CUDA."""
    return torch.cuda.is_initialized()


def names() -> list[str]:
    """The GPUs' names, without taking any of their memory."""
    return [torch.cuda.get_device_properties(i).name for i in range(count())]


def visible_gpus(num_gpus: int) -> list[int]:
    """The GPUs of a node of `num_gpus` that this process sees, by CUDA_VISIBLE_DEVICES: its cuda:0, cuda:1, ...

    As CUDA reads the variable: all where it is not set; else those listed, in that order, up to the first index that
    the node does not have. Names such as GPU-5f3a are a real node's, and are refused.
    """
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return list(range(num_gpus))
    seen: list[int] = []
    for word in said.split(",") if said.strip() else []:
        try:
            index = int(word)
        except ValueError:
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES={said!r} names GPUs; list them by number, from 0 to {num_gpus - 1}"
            ) from None
        if index in seen:
            return []  # CUDA shows none where one is listed twice
        if not 0 <= index < num_gpus:
            break
        seen.append(index)
    return seen


def require_gpu(index: int, num_gpus: int | None = None) -> torch.device:
    """The device cuda:`index`, where this process sees so many GPUs.

    num_gpus: how many it sees; None counts them. Raises ValueError if it sees too few.
    """
    num_gpus = count() if num_gpus is None else num_gpus
    if not 0 <= index < num_gpus:
        seen = num_gpus and f"{num_gpus} GPU{'s' * (num_gpus > 1)}, from cuda:0 on"
        raise ValueError(f"cuda:{index} was asked for, and this process sees {seen or 'no GPU'}")
    return torch.device("cuda", index)


def for_rank(local_rank: int, kind: str | None = None) -> torch.device:
    """The device of a node's local rank: its own GPU where there are enough, a shared one where not, else the CPU.

    kind: "cpu" or "cuda"; None takes `available()`.
    """
    kind = kind or available()
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise ValueError(
            f'device is "cpu", "cuda" or None (whatever the machine has); got {kind!r}'
        )
    if count() == 0:
        raise ValueError(
            'device="cuda" was asked for, and this machine shows no GPU: use device="cpu"'
        )
    return torch.device("cuda", local_rank % count())


def use(device: torch.device) -> None:
    """Makes `device` this process's current one, so that "cuda" alone means it."""
    if device.type == "cuda":
        torch.cuda.set_device(device if device.index is None else require_gpu(device.index))


def current() -> torch.device:
    """Gives this rank's device, as the launcher chose it; outside a launch, the CPU or the local GPU."""
    if chosen := os.environ.get("DTCOURSE_DEVICE"):
        return torch.device(chosen)
    return for_rank(int(os.environ.get("LOCAL_RANK", 0)))


def is_gpu(device: torch.device | str | None = None) -> bool:
    """Whether `device` (default: this rank's) is a GPU."""
    return torch.device(device if device is not None else current()).type == "cuda"


def synchronize(device: torch.device | None = None) -> None:
    """Waits until the device has done all that was queued; nothing to wait for on a CPU."""
    if is_gpu(device):
        torch.cuda.synchronize(device or current())


def memory_allocated(device: torch.device | None = None) -> int:
    """Bytes of live tensors on a GPU, as PyTorch's caching allocator counts them; 0 on a CPU."""
    return torch.cuda.memory_allocated(device or current()) if is_gpu(device) else 0


def peak_memory(device: torch.device | None = None) -> int:
    """The most bytes that were live at once since `reset_peak_memory`; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device or current()) if is_gpu(device) else 0


def memory_reserved(device: torch.device | None = None) -> int:
    """Bytes that PyTorch's caching allocator holds of a GPU, in use or not; 0 on a CPU."""
    return torch.cuda.memory_reserved(device or current()) if is_gpu(device) else 0


def memory_segments(device: torch.device | None = None) -> list[list[tuple[int, bool]]]:
    """What the caching allocator holds of a GPU: its segments, each as blocks (bytes, in use) by address.

    From torch.cuda's memory snapshot; empty on a CPU, whose allocator keeps no such books.
    """
    if not is_gpu(device):
        return []
    index = (device or current()).index or 0
    return [
        [(block["size"], block["state"] != "inactive") for block in segment["blocks"]]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index
    ]


def empty_cache(device: torch.device | None = None) -> None:
    """Gives segments that no tensor uses back to the GPU; nothing on a CPU."""
    if is_gpu(device):
        torch.cuda.empty_cache()


def reset_peak_memory(device: torch.device | None = None) -> None:
    """Starts a new measurement of `peak_memory`."""
    if is_gpu(device):
        torch.cuda.reset_peak_memory_stats(device or current())


def default_backend(world_size: int, kind: str) -> str:
    """The torch.distributed backend for `world_size` ranks of one machine.

    NCCL where every rank has a GPU of its own (it refuses two ranks on one); gloo elsewhere, which takes CUDA
    tensors too, by way of host memory.
    """
    if kind == "cuda" and torch.distributed.is_nccl_available() and world_size <= count():
        return "nccl"
    return "gloo"


def hide() -> None:
    """Hides every GPU from this process: for ranks that run on the CPU, so that none takes a context by accident."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """The state of the CPU's default generator, and of this rank's GPU's (None on a CPU)."""
    gpu = torch.cuda.get_rng_state(current()) if is_gpu() and torch.cuda.is_initialized() else None
    return torch.get_rng_state(), gpu


def set_random_state(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    """Goes back to what `random_state` returned."""
    cpu, gpu = state
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu, current())


class SideStream:
    """Copies beside the computation: a second CUDA stream; on a CPU one thread, since copying lets go of Python's lock.

    What is handed to `run` is done in that order, each after what the computation had queued by then. `finished`, if
    given, is told when it really ran (seconds on the monotonic clock).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._thread: ThreadPoolExecutor | None = None
        self._stream: Any = None
        self._untold: list[tuple[Callable[[float, float], None], Any, Any]] = []
        if is_gpu(device):
            self._stream = torch.cuda.Stream(device)
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record(self._stream)
            self._origin.synchronize()
            self._origin_time = time.monotonic()
        else:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="side-stream")

    def run(
        self,
        work: Callable[[], None],
        uses: Iterable[torch.Tensor] = (),
        finished: Callable[[float, float], None] | None = None,
    ) -> Callable[[], None]:
        """Starts `work`, and returns a function that makes the computation wait for it (the host only on a CPU).

        uses: tensors of the computation that it reads, and that may be let go before it is done
        """
        if self._thread is not None:
            return self._thread.submit(self._timed, work, finished).result
        started, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            started.record()
            work()
            done.record()
        for tensor in uses:  # its memory must not be given to others meanwhile
            tensor.record_stream(self._stream)
        if finished is not None:
            self._untold.append((finished, started, done))
        self._tell(wait=False)
        return lambda: torch.cuda.current_stream(self.device).wait_event(done)

    def synchronize(self) -> None:
        """Waits, on the host, until everything is done, and every `finished` has been told."""
        if self._thread is not None:
            self._thread.submit(lambda: None).result()
        else:
            self._stream.synchronize()
            self._tell(wait=True)

    def _tell(self, wait: bool) -> None:
        while self._untold and (wait or self._untold[0][2].query()):
            finished, started, done = self._untold.pop(0)
            finished(
                *(self._origin_time + self._origin.elapsed_time(e) / 1e3 for e in (started, done))
            )

    @staticmethod
    def _timed(work: Callable[[], None], finished: Callable[[float, float], None] | None) -> None:
        start = time.monotonic()
        with torch.no_grad():
            work()
        if finished is not None:
            finished(start, time.monotonic())
