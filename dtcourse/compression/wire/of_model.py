"""What a hook's state keeps between steps: by parameter of one model, where a whole step was finite; saved and loaded.

A state is told of its model by the buckets alone. So parameters are known by the order in which the first step's
buckets bring them, which is the same in every run of the same model: the order of a saved state. What has been loaded
waits for its parameter to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.replicas import Group


class PerParameter(dict[Tensor, Tensor]):
    """One tensor for each parameter; `loaded` has those, by position, whose parameters have not come yet."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Forgets all, what has been loaded too."""
        super().clear()
        self.loaded.clear()


class ModelParameters:
    """The parameters of the one model that a state is for: those that its first step has brought.

    kept: what the state keeps for them
    """

    def __init__(self, *kept: PerParameter) -> None:
        self.order: list[Tensor] = []
        self._positions: dict[Tensor, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._complete = False
        self._loaded_shapes: list[tuple[int, ...]] | None = None
        self._kept = kept

    def check(self, bucket: Any) -> tuple[int, ...]:
        """The positions of a bucket's parameters.

        Raises ValueError, on every rank, for a bucket of another model, or of one that has changed.
        """
        for parameter in bucket.parameters():
            shape, position = tuple(parameter.shape), self._positions.get(parameter)
            before = None if position is None else self._shapes[position]
            if before != (before if position is None and not self._complete else shape):
                raise ValueError(
                    f"this state has worked for a model of {len(self.order)} parameters, and one of shape {shape} "
                    f"{'was not among them' if before is None else f'had the shape {before}'}. What it keeps "
                    "belongs to that model: make a new state for each model, and for one that has changed"
                )
            if position is None:
                self._add(parameter, shape)
        if bucket.is_last() and not self._complete:
            self._complete = True
            self._compare(self._shapes)
        return tuple(self._positions[parameter] for parameter in bucket.parameters())

    def state_dict(self) -> dict[str, Any]:
        """The shapes of the parameters, in order."""
        return {"shapes": list(self._shapes or self._loaded_shapes or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the order of a saved state. Raises ValueError where this state's model has other shapes."""
        self._loaded_shapes = [tuple(shape) for shape in state["shapes"]]
        if self._complete:
            self._compare(self._shapes)

    def saved(self, kept: PerParameter) -> list[Tensor | None]:
        """What is kept for each parameter, in order: copies."""
        count = len(self.order) or len(self._loaded_shapes or ())
        found = [kept.loaded.get(position) for position in range(count)]
        for position, parameter in enumerate(self.order):
            found[position] = kept.get(parameter)
        return [None if one is None else one.detach().clone() for one in found]

    def load(self, kept: PerParameter, saved: list[Tensor | None]) -> None:
        """Takes what `saved` was, after load_state_dict."""
        kept.clear()
        kept.loaded = {i: one.clone() for i, one in enumerate(saved) if one is not None}
        for position, parameter in enumerate(self.order):
            self._bring(kept, position, parameter)

    def add_to(self, kept: PerParameter, position: int, part: slice, values: Tensor) -> None:
        """Adds values to a part of what is kept for the parameter, flat, at that position."""
        known = position < len(self.order)
        shape = (self._shapes if known else self._loaded_shapes or [])[position]
        old = kept.get(self.order[position]) if known else kept.loaded.get(position)
        new = values.new_zeros(torch.Size(shape).numel()) if old is None else old.clone()
        new[part] += values.to(new)
        if known:
            kept[self.order[position]] = new
        else:
            kept.loaded[position] = new

    def sizes(self, positions: Iterable[int]) -> list[int]:
        """The numbers of the parameters at those positions."""
        shapes = self._loaded_shapes if len(self.order) < len(self._loaded_shapes or ()) else None
        return [torch.Size((shapes or self._shapes)[i]).numel() for i in positions]

    def _add(self, parameter: Tensor, shape: tuple[int, ...]) -> None:
        position = len(self.order)
        self._compare([*self._shapes, shape], whole=False)
        self._shapes.append(shape)
        self._positions[parameter] = position
        self.order.append(parameter)
        for kept in self._kept:
            self._bring(kept, position, parameter)

    def _compare(self, shapes: list[tuple[int, ...]], whole: bool = True) -> None:
        loaded, count = self._loaded_shapes, len(shapes)
        if loaded is None or (loaded[:count] == shapes and (not whole or len(loaded) == count)):
            return
        raise ValueError(
            f"the state that was loaded is of {len(loaded)} parameters of shapes {loaded}, and this model's first "
            f"step has brought {count}{'' if whole else ' so far'}, of shapes {shapes}: it belongs to another model, "
            "or the hook was registered at another time than in the run that was saved; register it before the first "
            "step"
        )

    @staticmethod
    def _bring(kept: PerParameter, position: int, parameter: Tensor) -> None:
        if position in kept.loaded:
            kept[parameter] = kept.loaded.pop(position).to(parameter.device)


class OfModel:
    """A state that is told of its model by the buckets."""

    _model: ModelParameters

    def know(self, buckets: Iterable[Any]) -> None:
        """Takes a model's parameters from its buckets before the first step brings them: `know(ddp.reducer.buckets)`.

        A run that resumes may begin with the buckets of later steps (fault_tolerance's BucketLayout), in which the
        parameters come in another order. Call it where the hook is registered, in the first run too.
        """
        for bucket in buckets:
            self._model.check(bucket)


class WholeStep:
    """What all buckets of a step would keep, and keep where all of their means are finite: else the step is skipped.

    Means are the same on all ranks, so all keep, or none.
    """

    def __init__(self) -> None:
        self._keeps: list[Callable[[], None]] = []
        self._finite = True

    def bucket_done(self, finite: bool, is_last: bool, keep: Callable[[], None]) -> None:
        """A bucket's mean has come. keep: what is done at the step's end, if all are finite."""
        self._finite = self._finite and finite
        self._keeps.append(keep)
        if is_last:
            for each in self._keeps if self._finite else ():
                each()
            self._keeps.clear()


def whose(group: Group) -> dict[str, int]:
    """A saved state's rank and world size: each rank has its own."""
    return {"rank": dist.get_rank(group), "world_size": dist.get_world_size(group)}


def check_whose(
    state: dict[str, Any], group: Group, advice: str = "begin with a new state"
) -> None:
    """Raises ValueError for a state that another rank has saved, or one of another number of ranks."""
    here, saved = whose(group), {name: state[name] for name in ("rank", "world_size")}
    if saved != here:
        raise ValueError(
            f"the saved state is that of rank {saved['rank']} of {saved['world_size']}, and this is rank "
            f"{here['rank']} of {here['world_size']}: what a rank has left out belongs to its own gradients, so each "
            f"rank saves and loads its own. With another number of ranks {advice}"
        )
