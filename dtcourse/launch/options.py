"""What a user may ask of launch, checked before anything starts;
and what the machine decides where they did not say.
"""

from __future__ import annotations

import errno
import inspect
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dtcourse.plural import plural

TORCH_BACKENDS = ("gloo", "nccl", "mpi")

NO_LIMIT = 1e9  # seconds; a longer time limit is none
# A channel, its output, its stacks, a sentinel, and the pipe that tells it that we live.
FILES_PER_RANK = 5
SPARE_FILES = 24  # the server, the store, and what a launch opens for a moment
MANY_FILES = 1000  # more left than this: not worth counting those that are open


def wrong_python(missing: str) -> str:
    """What to say where a package is missing: nearly always, the notebook runs in another Python than the course's."""
    return (
        f"this notebook's Python ({sys.executable}) has no {missing}. If you installed dtcourse with `make lab`, "
        "choose Kernel > Change Kernel > Python 3 (ipykernel) in the JupyterLab that it opened."
    )


@dataclass(frozen=True)
class Layout:
    """How the ranks of one launch are laid out."""

    world_size: int
    nodes: int
    kind: str  # "cpu" or "cuda"
    gpus: int
    backend: str
    threads: int

    @property
    def ranks_per_node(self) -> int:
        """The most of any node: the first ones have one more than the others where the ranks cannot be divided."""
        return -(-self.world_size // self.nodes)

    def ranks_of(self, node: int) -> range:
        """The ranks of one node."""
        each, more = divmod(self.world_size, self.nodes)
        first = node * each + min(node, more)
        return range(first, first + each + (node < more))

    def node_of(self, rank: int) -> int:
        """The node that a rank is on."""
        return next(node for node in range(self.nodes) if rank in self.ranks_of(node))

    def __str__(self) -> str:
        ranks = f"{plural(self.world_size, 'rank')}"
        if self.nodes > 1:
            sizes = dict.fromkeys(str(len(self.ranks_of(node))) for node in range(self.nodes))
            ranks += f" as {self.nodes} nodes of {' and '.join(sizes)}"
        if self.kind == "cpu":
            where = "the CPU"
        elif self.gpus >= self.world_size:
            where = "a GPU each"
        else:
            where = f"{plural(self.gpus, 'shared GPU')}"
        threads = f"{plural(self.threads, 'thread')}"
        return f"{ranks} on {where}, backend {self.backend}, {threads} a rank"


def choose(
    world_size: Any, backend: str | None, device: str | None, nodes: Any, threads: Any
) -> Layout:
    """Checks what was asked for and fills in the rest from the machine. ValueError says what to do instead."""
    if sys.platform == "win32":
        raise RuntimeError(
            "dtcourse starts ranks on Linux and macOS: on Windows, run it inside WSL2"
        )
    from dtcourse import device as devices

    world_size, nodes, threads = whole_numbers(world_size, nodes, threads)
    if world_size % nodes:
        raise ValueError(f"{world_size} ranks cannot be laid out as {nodes} nodes of equal size")
    gpus = devices.count()
    kind = device_kind(device, gpus, devices.available(), "this machine shows no GPU")
    if backend == "nccl" and (kind == "cpu" or world_size > gpus):
        raise ValueError(
            f'backend="nccl" needs a GPU for every rank: {world_size} asked for, {gpus} on this machine. '
            'Use backend="gloo", or at most that many ranks.'
        )
    return Layout(
        world_size=world_size,
        nodes=nodes,
        kind=kind,
        gpus=gpus if kind == "cuda" else 0,
        backend=known_backend(backend) or devices.default_backend(world_size, kind),
        threads=threads,
    )


def whole_numbers(world_size: Any, nodes: Any, threads: Any) -> tuple[int, int, int]:
    """These three as int. Raises ValueError unless they are whole numbers of at least 1."""
    return (
        whole_number("world_size", world_size, "the number of ranks to start"),
        whole_number("nodes", nodes, "the number of nodes to lay the ranks out as"),
        whole_number("threads", threads, "the number of threads a rank computes with"),
    )


def device_kind(device: Any, gpus: int, usual: str, none: str) -> str:
    """What the ranks compute on, "cpu" or "cuda". ValueError for another name, or a GPU where there is none.

    gpus:  of the machine, or of a node
    usual: where device is None
    none:  why there is no GPU, as a clause of a sentence
    """
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device is "cpu", "cuda" or None (whatever there is); got {device!r}')
    if device == "cuda" and gpus == 0:
        raise ValueError(f'device="cuda" was asked for, and {none}: use device="cpu"')
    return device or usual


def whole_number(name: str, value: Any, meaning: str) -> int:
    """`value`, a whole number of any kind (NumPy's too), as int. Raises ValueError unless it is one of at least 1."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} is {meaning}: a whole number, 1 or more; got {value!r}")
    return number


def time_limit(timeout: Any) -> float | None:
    """The seconds that a launch may take, or None for no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0:
        raise ValueError(
            f"timeout is in seconds, more than 0, or None for no limit; got {timeout!r}"
        )
    return float(timeout) if float(timeout) < NO_LIMIT else None


def emulated_cluster(
    devices: Any, network: Any, clock: str | None, world_size: int, machines: int = 1
) -> Any:
    """What the ranks emulate, or None. ValueError for what is no device, network or clock."""
    if devices is None and network is None:
        if clock is not None:
            raise ValueError(
                f"clock={clock!r} is the clock of an emulated cluster: give devices= or network= as well"
            )
        return None
    from dtcourse.emulation.cluster import EmulatedCluster

    cluster = EmulatedCluster(devices, network, clock or ("wall" if devices is None else "virtual"))
    cluster.check(world_size)
    if cluster.clock == "wall" and machines > 1:
        # A message says when it was sent, and each machine's clock begins when it was started.
        raise ValueError(
            f'on {machines} machines there is no one wall clock to emulate on: give clock="virtual", '
            'or cluster="here" for ranks on this machine'
        )
    return cluster


def goes_on(on_failure: Any) -> bool:
    """Whether the other ranks go on when one fails."""
    if on_failure not in ("stop", "continue"):
        raise ValueError(
            'on_failure is "stop" (one failing rank ends all) or "continue" (the others go on); '
            f"got {on_failure!r}"
        )
    return bool(on_failure == "continue")


def check_open_files(world_size: int) -> None:
    """That this process may open what it takes to watch so many ranks: said before any of them is started."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_RANK * world_size + SPARE_FILES
    if limit == resource.RLIM_INFINITY or limit >= needed + MANY_FILES:
        return
    left = limit - len(os.listdir("/dev/fd"))
    if left < needed:
        raise OSError(
            errno.EMFILE,
            f"{world_size} ranks need {needed} open files in the notebook, and it may open {max(left, 0)} more: ask "
            "for fewer ranks, or raise the limit (ulimit -n 4096) in the terminal that starts Jupyter",
        )


def known_backend(backend: str | None) -> str | None:
    """Returns `backend`, or raises ValueError with the names that are known."""
    if backend is None or backend in TORCH_BACKENDS:
        return backend
    from dtcourse.collectives.backend import register as backends

    if backend not in backends.choices():
        known = ", ".join([*TORCH_BACKENDS, *backends.choices()])
        raise ValueError(f"there is no backend {backend!r}; known are {known}")
    return backend


def check_arguments(
    function: Callable[..., Any], launch: Callable[..., Any], args: Any, kwargs: Any
) -> None:
    """That `function` can be called with what it will be given: said here, in the notebook, and once."""
    if not callable(function):
        raise ValueError(f"launch takes a function and the number of ranks; got {function!r}")
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{_name(function)} is async: give launch an ordinary function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        return
    own = set(inspect.signature(launch).parameters)
    taken = [
        p.name
        for p in signature.parameters.values()
        if p.name in own
        and p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ""
        if taken:
            name = taken[0]
            hint = f". launch keeps {name!r} for itself: give functools.partial({_name(function)}, {name}=...)"
        raise ValueError(f"{_name(function)} cannot be called so: {error}{hint}") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
