"""A schedule is data: for each rank, the list of actions that it performs, in their order.

    1F1B on 2 ranks, 3 micro-batches ("1F2": stage 1, forward, micro-batch 2)
    rank 0   0F0 0F1 0B0 0F2 0B1 0B2
    rank 1   1F0 1B0 1F1 1B1 1F2 1B2

Nothing else is decided by it: not when an action runs (simulate.py), nor how (the engine).
What a schedule has to respect:

    F(s, m)  after F(s - 1, m)                    the activations of the stage before
    B(s, m)  after F(s, m) and B(s + 1, m)        what the forward has kept; the gradient from the stage after
    I(s, m)  the same as B                        backward-input: the gradient that goes to stage s - 1
    W(s, m)  after I(s, m)                        backward-weight: nobody waits for it

B is both halves at once: a stage and a micro-batch have either B, or I and W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dtcourse.events import HasTimeline
from dtcourse.plural import plural

FORWARD = "F"
BACKWARD = "B"
BACKWARD_INPUT = "I"
BACKWARD_WEIGHT = "W"
KINDS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
# In words, as pictures and their legends have them.
IN_WORDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "backward-input",
    BACKWARD_WEIGHT: "backward-weight",
}


class Action(NamedTuple):
    """What one rank does at one go; printed as PyTorch prints it: "1F2" is stage 1, forward, micro-batch 2."""

    stage: int
    kind: str
    micro_batch: int

    def __repr__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def detail(self) -> dict[str, Any]:
        """What its event says besides the name, be the schedule simulated or run: a picture needs no more."""
        return {
            "action": IN_WORDS.get(self.kind, self.kind),
            "stage": self.stage,
            "micro_batch": self.micro_batch,
        }


@dataclass(frozen=True)
class Schedule(HasTimeline):
    """The actions of all ranks in one training step. A notebook shows it as the papers do: I and W as long as F.

    name:           the field's name of it ("1F1B")
    ranks:          by rank, its actions in order
    rank_of:        by stage, the rank that holds it
    micro_batches:  into how many parts the batch is split
    memory_bound:   by rank, the most that its forwards have stored at once, in activations of one micro-batch in all
                    stages of the rank; an activation counts until its B or W, as if I freed nothing
    flush:          whether all weights are updated once, after the last backward. Else (PipeDream) each stage updates
                    its own after each of its backwards, and a backward takes the weights that its forward has met
    """

    name: str
    ranks: Sequence[Sequence[Action]]
    rank_of: Sequence[int]
    micro_batches: int
    memory_bound: Sequence[float]
    flush: bool = True
    time_unit: ClassVar[str] = "forwards of one rank"

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        """Into how many stages the model is split: ranks times chunks."""
        return len(self.rank_of)

    @property
    def num_chunks(self) -> int:
        """How many stages each rank holds ("virtual stages")."""
        return self.num_stages // self.num_ranks

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a rank holds, in the model's order."""
        return [stage for stage, owner in enumerate(self.rank_of) if owner == rank]

    def __iter__(self) -> Iterator[Sequence[Action]]:
        return iter(self.ranks)

    def __repr__(self) -> str:
        ranks, parts = (
            plural(self.num_ranks, "rank"),
            plural(self.micro_batches, "micro-batch", "micro-batches"),
        )
        chunks = f" of {self.num_chunks} stages each" if self.num_chunks > 1 else ""
        return f"<{self.name}: {ranks}{chunks}, {parts}>"


def looped(ranks: int, chunks: int = 1) -> list[int]:
    """Placement of stages: round and round the ranks. 2 ranks, 2 chunks: [0, 1, 0, 1]."""
    return [stage % ranks for stage in range(ranks * chunks)]


def v_shaped(ranks: int) -> list[int]:
    """Placement of 2 stages a rank: down and up again, so that rank 0 has the first and the last. 2 ranks: [0, 1, 1,
    0].
    """
    return [*range(ranks), *reversed(range(ranks))]


def needs(action: Action, num_stages: int) -> Action | None:
    """What a stage elsewhere must have done before: F of the stage before,
    the backward of the stage after (`result`).
    """
    stage, kind, micro_batch = action
    if kind == FORWARD:
        return Action(stage - 1, FORWARD, micro_batch) if stage > 0 else None
    if kind == BACKWARD_WEIGHT or stage == num_stages - 1:
        return None
    return Action(stage + 1, BACKWARD, micro_batch)


def needed_by(action: Action, num_stages: int) -> int | None:
    """The stage that waits for what an action makes; None where nobody does."""
    stage = action.stage + (1 if action.kind == FORWARD else -1)
    return stage if action.kind != BACKWARD_WEIGHT and 0 <= stage < num_stages else None


def result(action: Action) -> Action:
    """The name of what an action makes for another stage: a gradient is B's, be it made by B or by I."""
    return action if action.kind == FORWARD else action._replace(kind=BACKWARD)
