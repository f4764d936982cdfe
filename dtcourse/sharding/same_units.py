"""Do all ranks call the same units, in the same order? Compared once for each unit, in the first step that has it.

They gather a unit together. Where a branch by a rank's own data leads to different ones, each computes with the other's
parameters; nothing fails if their shapes are equal, and a rank that skips a unit takes the next gather for its own.

The ranks compare through the store where their group met: no message, and nothing in later steps. A rank whose others
are late goes on after a moment, since one that has died shows in the gather, and looks again when that has ended: by
then all have written. (One that was late itself raises at once; those in a gather without it are told by its end.)
Where the host does not wait for a gather (NCCL), the look is put off until all have written. A branch that parts ranks
later, between units that all have called, is not seen, but with DTCOURSE_CHECK=always (collectives/checks.py).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dtcourse.collectives import checks
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

        On each rank that has come in time; where one was late, on that one first.

        groups: None is none
        """
        if not checks.is_due(what, self._compared):
            return
        for group in groups:
            if group is not None and dist.get_world_size(group) > 1:
                self._check(checks.Signature(f"{what} of {name}"), group)
        self._compared.add(what)

    def _check(self, mine: checks.Signature, group: Any) -> None:
        notes = checks.notes_of(group, "units")
        keys = checks.post(group, mine, notes)
        try:
            wait_for(notes.store, keys, MOMENT)
        except (dist.DistStoreError, RuntimeError):
            self._late.append((group, mine, notes, keys))
            return
        _compare(group, mine, notes, keys)

    def check_late(self, all_came: bool = True) -> None:
        """The same of what was late.

        all_came: whether a collective has ended since; else what others have not written yet is left for the next call
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
