"""The plain model's state, from a model whose experts are given out, and back into one: on any number of ranks.

    torch.save(full_state_dict(model), path)                 # whole, by the plain model's names; a collective
    load_full_state_dict(model, torch.load(path))            # each rank takes its experts' rows

Each expert's parameter is a run of rows of the plain model's, in the order of the ranks, so a state that 4 ranks saved
loads into one process or into 2 (parameters/whole.py). Memory: the whole model's once on each rank, for as long as the
state is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dtcourse.parameters import whole


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The plain model's state, on every rank: it loads into that. A collective."""
    return whole.full_state_dict(model)


def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Takes this rank's experts out of each whole tensor, and all of the others. Every rank calls it,
    with the same state.

    Raises ValueError on all ranks, before anything is changed,
    for names that are missing or unexpected and other shapes.
    """
    whole.load_full_state_dict(model, state)
