"""Do all ranks call the same units, in the same order? Compared once for each unit, in the first step that calls it.

A unit's parameters are gathered by all ranks together. Where a branch by a rank's own data calls another unit, each
rank computes with the other's parameters. If their shapes are equal, nothing fails; and a rank that skips a unit takes
the next gather for its own.

Before a unit's first gather each rank writes its name to the store where their group met, and reads the others' names.
No message is sent, and later steps compare nothing. There are three cases:

- All ranks have written: they compare, and all of them raise, or none.
- Some are late: this rank waits for MOMENT, and goes on, since a rank that has died shows in the gather. It compares
  when the gather has ended, which all ranks took part in. A late rank compares when it comes, and raises first; the
  others are still in a gather, and learn of it when that rank ends.
- The host does not wait for a gather (NCCL): the comparison waits until all have written.

What is not seen: ranks that part in a later step, between units that all have called before. DTCOURSE_CHECK=always
(collectives/checks.py) compares in every step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dtcourse.collectives import checks, decisions
from dtcourse.torch_private import wait_for

MOMENT = timedelta(seconds=3)
AT_ONCE = timedelta(milliseconds=1)


class SameUnits:
    """What the ranks have compared of one unit."""

    def __init__(self) -> None:
        self._compared: set[str] = set()
        self._late: list[tuple[Any, checks.Signature, Any, list[str]]] = []

    def check(self, what: str, name: str, *groups: Any) -> None:
        """Raises ValueError unless all ranks of the groups are about to do this with the unit `name`.

        On every rank, if all come in time; else on the late one, and on the others in `check_late`.

        groups: those that gather or reduce the unit; None stands for no group
        """
        if not checks.is_due(what, self._compared):
            return
        for group in groups:
            if group is not None and dist.get_world_size(group) > 1:
                self._check(checks.Signature(f"{what} of {name}"), group)
        self._compared.add(what)

    def _check(self, mine: checks.Signature, group: Any) -> None:
        if decisions.is_virtual(group):  # nobody else writes notes
            return
        notes = checks.notes_of(group, "units")
        keys = checks.post(group, mine, notes)
        try:
            wait_for(notes.store, keys, MOMENT)
        except (dist.DistStoreError, RuntimeError):
            self._late.append((group, mine, notes, keys))
            return
        _compare(group, mine, notes, keys)

    def check_late(self, all_came: bool = True) -> None:
        """Compares what `check` could not, since a rank was late. Raises ValueError as `check` does.

        all_came: a collective has ended since, so all have written; else what is missing is left for the next call
        """
        late, self._late = self._late, []
        for group, mine, notes, keys in late:
            if all_came or notes.store.check(keys):
                _compare(group, mine, notes, keys)
            else:
                self._late.append((group, mine, notes, keys))


def _compare(group: Any, mine: checks.Signature, notes: Any, keys: list[str]) -> None:
    try:
        checks.compare_notes(group, mine, notes, keys, AT_ONCE)
    except ValueError as error:
        raise ValueError(
            f"{error}. Sharded modules are gathered by all ranks together: all call the same ones in the same order. "
            "Where a rank's own data decides which, call each of them on all ranks, or shard the module around them as "
            "one unit"
        ) from None
