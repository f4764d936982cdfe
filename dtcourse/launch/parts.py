"""PyTorch's larger parts, of which each takes as long to import as a third of the rest, and which calls need them.

What the names in a call, or in an answer to an exercise, do not tell, a rank imports when it gets there. It takes
longer, and no more.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from importlib.machinery import PathFinder

import dtcourse
from dtcourse.launch.serialization import Serialized

# Each with the names in code that uses it.
PARTS = {
    "torch.distributed.tensor": {"DTensor", "distribute_tensor", "parallelize_module"},
    "torch.distributed.fsdp": {"fsdp", "fully_shard", "FullyShardedDataParallel"},
    # imported by the first optimizer of a process, by DDP, by checkpoints, by the modes of the memory's tracker and
    # of PyTorch's own profilers, and by what compiles
    "torch._dynamo": {
        *("optim", "DistributedDataParallel", "MemoryTracker", "checkpoint", "compile", "profiler", "flop_counter"),
        *("_python_dispatch", "custom_op", "flex_attention", "use_deterministic_algorithms"),
    },
}  # fmt: skip
NAMES = set[str]().union(*PARTS.values(), {"func", "pipelining"})
# Packages none of which imports one of these, and the course's own that do not.
PLAIN = sys.stdlib_module_names | {"__main__", "cloudpickle", "numpy", "torch"}
GROUND = {f"dtcourse.{name}" for name in ("collectives", "device", "emulation", "events", "launch")}
_MODULES = tuple(f"{part}." for part in PARTS)
LONG = 1 << 16  # bytes of a call in which nobody searches

# Pickle's opcodes for a text of at most 255 bytes, and to remember it: every name in a call comes once in this way.
_NAME = re.compile(rb"\x8c.([A-Za-z_][\w.]*)\x94", re.DOTALL)


def are_needless(call: Serialized) -> bool:
    """Whether nothing that a serialized call names is one of the parts, or a module that may use one."""
    names = _names_in(call)
    return names is not None and not any(map(_may_need_one, names))


def of_the_course(call: Serialized) -> set[str]:
    """Modules of the course that a serialized call names, as far as that is to be seen."""
    names = _names_in(call) or set()
    named = {name for name in names if name.startswith("dtcourse.")}
    if "dtcourse" in names:  # from dtcourse import models
        named |= {f"dtcourse.{name}" for name in names & _packages()}
    return named


@cache
def _packages() -> set[str]:
    """What lies in the course's own folder."""
    return {os.path.splitext(name)[0] for name in os.listdir(os.path.dirname(dtcourse.__file__))}


def _names_in(call: Serialized) -> set[str] | None:
    stream, _ = call
    return None if len(stream) > LONG else {name.decode() for name in _NAME.findall(stream)}


def _may_need_one(name: str) -> bool:
    package, *rest = name.split(".")
    if package == "dtcourse":
        return ".".join([package, *rest[:1]]) not in GROUND
    if package in PLAIN or name.endswith(".py"):
        return not NAMES.isdisjoint(rest) or f"{name}.".startswith(_MODULES)
    return package in NAMES or package in sys.modules or PathFinder.find_spec(package) is not None
