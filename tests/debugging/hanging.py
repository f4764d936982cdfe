"""Programs that hang, one after the other in the same ranks: each on a group of its own, which is broken at the end.

While the ranks hang, a thread beside each writes its record, as the flight recorder's own thread does.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives import flight
from dtcourse.collectives.flight import recorder

WAITED = 0.4  # seconds that a rank has waited when records are written
LIMIT = 60.0
_staying = threading.Event()
_over = threading.Event()


def stay():
    """A rank that does something else, in no call, until the case is over."""
    _staying.set()
    _over.wait(LIMIT)


def run_all(cases, folder, healthy=()):
    """Each case in turn. Returns by name what this rank raised; records lie in a folder of the case's name."""
    raised = {}
    for name, case in cases.items():
        raised[name] = _run(case, Path(folder) / name, name)
    for name, case in dict(healthy).items():
        group = _group()
        flight.start(Path(folder) / name)
        case(group)
        flight.write(Path(folder) / name)
        flight.stop()
    return raised


def _group():
    group = dist.new_group(timeout=timedelta(seconds=LIMIT))
    dist.barrier(group)
    return group


def _run(case, folder, name):
    group = _group()
    others = case.groups() if hasattr(case, "groups") else []
    _staying.clear()
    _over.clear()
    flight.start(folder)
    thread = threading.Thread(target=_look_and_break, args=(folder, name, [group, *others]))
    thread.start()
    error = ""
    try:
        case(group, *others)
        flight.leave("returned")
        _staying.set()
    except RuntimeError as caught:
        error = str(caught)
    thread.join()
    flight.stop()
    return error


def _hangs():
    entries = list(recorder.of_process().entries)
    return any(not e.look() and time.monotonic() - e.begun > WAITED for e in entries)


def _look_and_break(folder, name, groups):
    limit = time.monotonic() + LIMIT
    while not _hangs() and not _staying.is_set() and time.monotonic() < limit:
        time.sleep(0.05)
    store = dist.group.WORLD.get_group_store()
    _meet(store, f"{name}/hang")
    if not (folder / f"rank-{dist.get_rank()}.jsonl").exists():
        flight.write(folder, "test")
    _meet(store, f"{name}/written")
    for group in groups:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            continue
        if hasattr(group, "guard"):  # one of ours
            group.abort()
            continue
        backend = torch_private.backend_of(group, torch.device("cpu"))
        with suppress(RuntimeError):
            torch_private.close_connections(backend, group.rank(), group.size(), 0x7FFFFFF0)
    _over.set()


def _meet(store, key):
    store.add(f"met/{key}", 1)
    limit = time.monotonic() + LIMIT
    while store.add(f"met/{key}", 0) < dist.get_world_size() and time.monotonic() < limit:
        time.sleep(0.02)


def wait_until(condition):
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, "it took a minute"
        time.sleep(0.1)
