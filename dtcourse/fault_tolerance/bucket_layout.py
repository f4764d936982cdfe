"""Which gradients share a bucket, and in which order buckets travel: a state of DistributedDataParallel's.

Where each number lies in a bucket decides which rank's part is added first: a ring all-reduce begins the sum of each
block on another rank. Two ranks' sum is the same either way; from three on, (a + b) + c and a + (b + c) differ in the
last bit. DDP builds its buckets twice: before the first backward by the order of definition, reversed, after it by the
order in which gradients came. So one that is wrapped anew takes its first step with other buckets than the run that
went on, and each later step from other weights.

    own = {"buckets": BucketLayout(model.reducer), ...}        # in a TrainingState

What a compression has left out it keeps in the order of the first step's buckets: tell it of them beforehand, as
`hook_state.know(model.reducer.buckets)`, where the hook is registered.

PyTorch's DistributedDataParallel does not say its buckets. Give it a forward and a backward before the checkpoint is
loaded, and its next forward builds them as the run that went on had them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtcourse.parameters.reducer import Reducer


class BucketLayout:
    """The buckets of a Reducer, in state_dict's shape: of DistributedDataParallel, ZeRO-2, a pipeline.

    Raises ValueError for PyTorch's own.
    """

    def __init__(self, reducer: Reducer) -> None:
        if not isinstance(reducer, Reducer):
            raise ValueError(
                f"{type(reducer).__module__}.{type(reducer).__name__} does not say its buckets. Of PyTorch's "
                "DistributedDataParallel leave this out, and run a forward and a backward before the load"
            )
        self.reducer = reducer

    def state_dict(self) -> dict[str, Any]:
        """The names of the parameters, bucket by bucket; the order of the first backward; whether it counts already."""
        names = self.reducer.names
        return {
            "buckets": self._buckets(),
            "order": [names[p] for p in self.reducer.order],
            "rebuilt": self.reducer.rebuilt,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Builds the same buckets, between two steps. ValueError, and no change, for another model's or size's."""
        reducer, before = self.reducer, self._buckets()
        by_name = {name: p for p, name in reducer.names.items()}
        saved = [name for bucket in state["buckets"] for name in bucket]
        if sorted(saved) != sorted(by_name):
            raise ValueError(
                f"the saved buckets hold {len(saved)} parameters of another model, and this one trains {len(by_name)}"
            )
        reducer.build([by_name[name] for name in saved])
        if (now := self._buckets()) != state["buckets"]:
            reducer.build([by_name[name] for bucket in before for name in bucket])
            raise ValueError(
                f"the saved run had {len(state['buckets'])} buckets, and this one would have {len(now)}: take the same "
                "bucket_cap_mb"
            )
        reducer.order, reducer.rebuilt = (
            [by_name[name] for name in state["order"]],
            state["rebuilt"],
        )
        reducer.start_pass()

    def load_elsewhere(self, states: Sequence[Mapping[str, Any]], rank: int) -> None:
        """The first rank's: all have the same."""
        self.load_state_dict(states[0])

    def _buckets(self) -> list[list[str]]:
        names = self.reducer.names
        return [[names[p] for p in bucket.parameters()] for bucket in self.reducer.buckets]
