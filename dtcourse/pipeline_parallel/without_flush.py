"""What PipeDream cannot have: each stage updates its weights after each backward, at another time than the others.

So two stages have no weight in common; and what other techniques do with gradients or weights before an update, between
two steps, has no time of its own.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dtcourse.parameters.cuts import TENSOR
from dtcourse.parameters.placement import placement_of
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.pipeline_parallel.stages import tied_in

_NO_MEAN = "gradients are to be averaged first"


def refuse_shared(stages: dict[int, nn.Module]) -> None:
    """ValueError where two stages, of this rank or of others, would each update the same parameter."""
    for tied in (one for one in tied_in(stages) if one.trained):
        first, second = list(tied.names)[:2]
        _say_shared(first, second, tied.names[second])
    holder: dict[nn.Parameter, int] = {}
    for stage, module in stages.items():
        for name, parameter in module.named_parameters():
            if holder.setdefault(parameter, stage) != stage and parameter.requires_grad:
                _say_shared(holder[parameter], stage, name)


def _say_shared(first: int, second: int, name: str) -> None:
    raise ValueError(
        f"Stages {first} and {second} share a parameter (stage {second}'s {name}), and each would "
        "update it, at other times: PipeDream has no tied weights."
    )


def refuse_averaged(stages: dict[int, nn.Module]) -> None:
    """ValueError where something would have to happen between a backward and the update that follows it."""
    for module in stages.values():
        if isinstance(module, Wrapper):
            raise ValueError(_refusal(f"{type(module).__name__}: {_NO_MEAN}"))
        for name, parameter in module.named_parameters():
            for cut in placement_of(parameter).cuts:
                if cut.technique != TENSOR:
                    raise ValueError(
                        _refusal(f"{cut.technique} ({name}): {_NO_MEAN}, or weights gathered")
                    )


def refuse_shared_out(optimizer: Any) -> None:
    """ValueError for an optimizer that steps for others, too: ZeRO's."""
    if hasattr(optimizer, "owners"):
        raise ValueError(_refusal(f"{type(optimizer).__name__}: {_NO_MEAN}"))


def _refusal(what: str) -> str:
    return (
        f"PipeDream does not compose with {what}, and each of its updates follows a backward at once, so nobody does: "
        "use Pipeline with a schedule that has a flush (one_f_one_b)"
    )
