"""What a notebook defines reaches the processes that Python itself starts: a DataLoader's workers, a Pool's.

A class or a function is pickled by its name, and the other process imports it. What `__main__` defines is found there
only where the process is a fork of this one, or can run `__main__`'s file. A notebook has no file, nor has a rank. And
processes are forked on Linux before Python 3.14 alone: since then a fork server starts them, and on macOS they are
spawned. So where such a name would not be found, cloudpickle sends what it stands for.

Nothing else is pickled in another way: a script's own `__main__`, and processes that are forked, are as they were.
"""

from __future__ import annotations

import pickle
import sys
from multiprocessing import context, reduction
from types import FunctionType
from typing import Any

from dtcourse.launch.serialization import cloudpickle


def _reduce(pickler: Any, obj: Any) -> Any:
    """In the place of pickle's own way, for classes and functions that could not be found by their names."""
    if (
        isinstance(obj, (type, FunctionType))
        and obj.__module__ == "__main__"
        and not _is_found(obj)
    ):
        return _restored, (cloudpickle.dumps(obj),)
    return NotImplemented


def _is_found(obj: Any) -> bool:
    """Whether the other process finds it, as far as that can be seen here."""
    main = sys.modules["__main__"]
    if context.get_spawning_popen() is not None and not _can_be_run(main):
        return False
    found: Any = main
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _can_be_run(main: Any) -> bool:
    """Whether a process that is started anew runs it again, as multiprocessing.spawn decides."""
    return getattr(getattr(main, "__spec__", None), "name", None) is not None or hasattr(
        main, "__file__"
    )


def _restored(pickled: bytes) -> Any:
    """In the other process, which sends back in the same way what it has got so: it imports this module."""
    return pickle.loads(pickled)


reduction.ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]
