"""All that a run must find again to go on as if nothing had happened, saved and loaded together.

    state = TrainingState(
        snapshot=partial(snapshot_of, model, optimizer), load=partial(load_into, model, optimizer),
        shared={"data": loader, "schedule": scheduler, "scaler": scaler},
        own={"random": RandomStates(), "buckets": BucketLayout(model.reducer)},
        same={"model": str(shape), "data": fingerprint(dataset)},
    )
    saving.save(step, state.snapshot, state.about())                # background.py, or now:
    checkpoints.save(step, state.snapshot(), state.about())
    found = checkpoints.latest()
    step = state.load(found) if found else 0

What the ranks have together (weights, the optimizer's states) is written in parts by whoever knows how they are cut.
The rest is small: what is the same on all ranks, of which one copy is kept, and what each rank has of its own. Buffers
are both: the parts have the lowest rank's, and each rank's own file its own, since statistics of batch normalisation
differ where no wrapper sends them. On as many ranks and the same layout a run that resumes is the same to the bit. On
another number of ranks what is shared is as it was, and own states are made to fit by those that can:
load_elsewhere(states of all ranks, rank).

Loading is all or nothing, and goes by weights_only: a checkpoint is data, and nothing in it is run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dtcourse import checkpoint, nested
from dtcourse.checkpoint import files
from dtcourse.checkpoint import folder as checkpoint_folder
from dtcourse.checkpoint.only_data import data_bytes
from dtcourse.fault_tolerance.checkpoints import Found, Write
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.parameters.agreement import check_agreed, raise_on_all_ranks
from dtcourse.parameters.naming import buffers
from dtcourse.parameters.replicas import Group
from dtcourse.plural import plural

PARTS, SHARED = "parts", "shared.pt"
BUFFERS = "the model's buffers"  # in each rank's own file, beside what is in `own`


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a loader, a sampler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


class TrainingState:
    """What a run is made of, for Checkpoints.

    snapshot: copies what the ranks have in parts, and returns what writes the copy into a folder; every rank calls both
    load:     reads it again from that folder, all or nothing
    shared:   by name, what has the same state on all ranks
    own:      by name, what has another one on each
    same:     by name, plain values that a resumed run must have too: the model's shape, the optimizer, the data
    layout:   how the model is cut: own states are loaded as they are where this and the number of ranks are the same
    buffers:  gives this rank's buffers by name; on the same layout each rank gets its own back, after the parts
    """

    def __init__(
        self,
        snapshot: Callable[[], Write],
        load: Callable[[Path], object],
        shared: Mapping[str, Stateful] | None = None,
        own: Mapping[str, Stateful] | None = None,
        same: Mapping[str, Any] | None = None,
        layout: str = "",
        group: Group = None,
        buffers: Callable[[], Mapping[str, torch.Tensor]] = dict,
    ) -> None:
        self._snapshot, self._load, self._buffers = snapshot, load, buffers
        self.shared, self.own = dict(shared or {}), dict(own or {})
        self.same: dict[str, Any] = json.loads(
            json.dumps(dict(same or {}))
        )  # as a mark gives it back
        self.layout, self.group = layout, group

    @classmethod
    def of(cls, model: Any, optimizer: torch.optim.Optimizer, **keywords: Any) -> TrainingState:
        """With dtcourse.checkpoint, for a model and its optimizer however they are cut (of a pipeline, its module)."""

        def snapshot() -> Write:
            copied = checkpoint.snapshot(model, optimizer)
            return lambda folder, group: checkpoint_folder.write(folder, copied, group)

        kind = getattr(optimizer, "optim", optimizer)
        same = {"optimizer": type(kind).__name__, **keywords.pop("same", {})}
        return cls(
            snapshot,
            lambda folder: checkpoint.load(folder, model, optimizer),
            same=same,
            buffers=partial(buffers, model),
            **keywords,
        )

    def about(self) -> dict[str, Any]:
        """What goes into a checkpoint's mark."""
        return {
            "same": self.same,
            "layout": self.layout,
            "world_size": dist.get_world_size(self.group),
            "shared": sorted(self.shared),
            "own": sorted(self.own),
        }

    def snapshot(self) -> Write:
        """Copies all of it now; what it returns writes the copy. ValueError where shared states are not the same."""
        write_parts = self._snapshot()
        shared = _serialized({n: part.state_dict() for n, part in self.shared.items()})
        states = {n: part.state_dict() for n, part in self.own.items()}
        own = _serialized({**states, BUFFERS: dict(self._buffers())})
        check_agreed(
            {name: digest(part.state_dict()) for name, part in self.shared.items()},
            self.group,
            "What differs from rank to rank belongs to own, not to shared",
        )

        def write(folder: Path, group: Group) -> None:
            rank = dist.get_rank(group)
            write_parts(folder / PARTS, group)

            def small() -> None:
                files.write_bytes(folder / own_name(rank), own)
                if rank == 0:
                    files.write_bytes(folder / SHARED, shared)

            raise_on_all_ranks(small, group)

        return write

    def load(self, found: Found) -> int:
        """Takes all of it from a complete checkpoint; returns the step after which it was taken. Every rank calls it.

        Raises ValueError on all ranks, and leaves everything as it was, where the checkpoint belongs to another run:
        the sentence says what differs.
        """
        raise_on_all_ranks(lambda: self._check(found), self.group)
        parts = {**self.shared, **self.own}
        before = {n: copy.deepcopy(part.state_dict()) for n, part in parts.items()}
        try:
            of_rank = raise_on_all_ranks(lambda: self._load_small(found), self.group)
            self._load(found.folder / PARTS)
        except BaseException:
            for name, part in parts.items():
                part.load_state_dict(before[name])
            raise
        with torch.no_grad():
            for name, buffer in self._buffers().items() if of_rank else ():
                buffer.copy_(of_rank[name])
        return found.step

    def _check(self, found: Found) -> None:
        theirs, mine = found.about, self.about()
        if "same" not in theirs:
            raise ValueError(f"{found.folder} was not saved by a TrainingState. Nothing was loaded")
        names = dict.fromkeys([*theirs["same"], *mine["same"]])
        wrong = [
            f"{n} is {theirs['same'].get(n, 'not said')} there and {mine['same'].get(n, 'not said')} here"
            for n in names
            if theirs["same"].get(n) != mine["same"].get(n)
        ]
        wrong += [
            f"it has the {kind} states {theirs[kind]}, and this run {mine[kind]}"
            for kind in ("shared", "own")
            if theirs[kind] != mine[kind]
        ]
        if wrong:
            raise ValueError(
                f"{found.folder} belongs to another run: {'; '.join(wrong)}. Nothing was loaded"
            )

    def _load_small(self, found: Found) -> Mapping[str, torch.Tensor]:
        """Loads what is not in parts; returns this rank's buffers, {} where they are to be those of the parts."""
        for name, state in _read(found.folder / SHARED).items():
            self.shared[name].load_state_dict(state)
        rank, world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        theirs = int(found.about["world_size"])
        if (theirs, found.about["layout"]) == (world_size, self.layout):
            mine = _read(found.folder / own_name(rank))
            of_rank: Mapping[str, torch.Tensor] = mine.pop(BUFFERS, {})  # older ones have none
            for name, state in mine.items():
                self.own[name].load_state_dict(state)
            return of_rank
        states = [_read(found.folder / own_name(r)) for r in range(theirs)] if self.own else []
        for name, part in self.own.items():
            if not hasattr(part, "load_elsewhere"):
                raise ValueError(
                    f"{name} is a state of each of {plural(theirs, 'rank')} "
                    f"({found.about['layout'] or 'no layout named'}), and this run has {plural(world_size, 'rank')} "
                    f"({self.layout or 'no layout named'}): {type(part).__name__} does not say how to give it out "
                    f"anew. Go on with {plural(theirs, 'rank')} cut alike, or give it a load_elsewhere(states of all, "
                    "rank), which makes this rank's from theirs, or begins anew what may be forgotten (what a "
                    "compression has left out: reset()). Nothing was loaded"
                )
            part.load_elsewhere([state[name] for state in states], rank)
        return {}


def own_name(rank: int) -> str:
    """The file of what a rank has of its own."""
    return f"own-{rank}.pt"


def _serialized(state: Any) -> bytes:
    """Bytes that weights_only reads again."""
    on_cpu = nested.map_tensors(lambda t: t.detach().cpu(), state)
    return data_bytes(on_cpu, "this state has something else than data")


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)
