"""Where each unit is in a step, as the schedule keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dtcourse.sharding.unit import Unit


@dataclass
class Progress:
    """Where one unit is in a step.

    ancestors:    the units whose modules contain its own
    is_innermost: no other unit inside
    in_backward:  its backward runs
    backward_pass: in which of autograd's passes backward came to its end
    gradients_to_come: of its parameters
    has_unsent_gradients: backward has come to it, and its gradients, if any, are still to leave
    backwards_to_come: forwards of it whose results backward has not come to
    backwards_to_pass: forwards of it whose inputs backward has not come to
    tells_its_end: whether backward says so, for all of them
    started:      when its forward or backward began, for the timeline
    """

    ancestors: set[Unit] = field(default_factory=set)
    is_innermost: bool = True
    in_backward: bool = False
    backward_pass: int = -1
    gradients_to_come: int = 0
    has_unsent_gradients: bool = False
    backwards_to_come: int = 0
    backwards_to_pass: int = 0
    tells_its_end: bool = True
    started: dict[str, float] = field(default_factory=dict)
