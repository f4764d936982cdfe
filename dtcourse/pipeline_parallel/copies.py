"""A weight that stages on several ranks use: each rank has a copy, and all copies have one gradient, to the last bit.

The gradient is the sum of the copies' own. One rank adds up, and sends the sum to the others: computed twice, it would
be rounded twice, and the copies would drift apart step by step. A mean over replicas rounds as well, from three on, by
a gradient's place in its message. So the sum comes after it; or the mean is the first copy's alone, and is sent on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.parameters.backward import averaged_by
from dtcourse.parameters.cuts import Owners, Run
from dtcourse.parameters.naming import Entry, kept_of
from dtcourse.parameters.placement import Placement, gradient_placement_of, local, placement_of
from dtcourse.parameters.whole import gathered
from dtcourse.parameters.wrapper import unwrapped
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.stages import tied_in

Copies = Sequence[tuple[nn.Parameter, list[int]]]


def copies_in(
    stages: Mapping[int, nn.Module], schedule: Schedule, rank: int
) -> list[tuple[nn.Parameter, list[int]]]:
    """The parameters of a rank's stages of which other ranks hold copies, and all of these ranks, in the model's order.

    stages: the rank's, by number
    """
    found = []
    for names in (one.names for one in tied_in(stages)):
        ranks = sorted({schedule.rank_of[stage] for stage in names})
        if rank in ranks and len(ranks) > 1:
            stage = next(stage for stage in names if stage in stages)
            held = unwrapped(stages[stage]).get_parameter(names[stage])
            found.append((kept_of(held), ranks))
    return found


def sum_over_copies(copies: Copies, group: dist.ProcessGroup | None) -> None:
    """Gives each parameter the sum of its copies' gradients, the same bits on all ranks.

    The first rank gets the others' and sends the sum back: with two copies each sends the gradient once, as in an
    all-reduce, and no group has to be formed for them. A copy that is not used has no gradient, and counts 0.
    """
    rank = p2p.rank(group)
    for parameter, (first, *others) in copies:
        total = _alike_in_all_stages(parameter)
        if rank != first:
            p2p.send(total, first, group)
            p2p.recv(total, first, group)
        else:
            for other in others:
                one = torch.empty_like(total)
                p2p.recv(one, other, group)
                total += one
            for other in others:
                p2p.send(total, other, group)
        _keep_of(parameter, total)


def take_first_copies(copies: Copies, group: dist.ProcessGroup | None) -> None:
    """Gives each parameter the gradient of its first copy, the same bits on all ranks: each other copy gets it once."""
    rank = p2p.rank(group)
    for parameter, (first, *others) in copies:
        gradient = _alike_in_all_stages(parameter)
        if rank != first:
            p2p.recv(gradient, first, group)
        else:
            for other in others:
                p2p.send(gradient, other, group)
        _keep_of(parameter, gradient)


def lies_in_a_flat(parameter: nn.Parameter) -> bool:
    """Whether this rank keeps of it a run of a flat tensor, which another stage's flat cuts elsewhere."""
    return any(isinstance(cut, Run) for cut in placement_of(parameter).cuts)


def gradient_owner(parameter: nn.Parameter) -> Owners | None:
    """Which of its replicas has its gradient, where backward leaves it on one (ZeRO-2): in each stage another one.

    Where reduce_gradients has done so in an earlier step, this step's are whole until it is called again.
    """
    if not any(hasattr(wrapper, "owners") for wrapper in averaged_by(parameter)):
        return None
    last = gradient_placement_of(parameter).cuts[-1:]
    return last[0] if last and isinstance(last[0], Owners) else None


def _alike_in_all_stages(parameter: nn.Parameter) -> torch.Tensor:
    """What a copy's gradient is added up by: this rank's piece, or all of it where another stage's pieces differ."""
    owner, placed = gradient_owner(parameter), placement_of(parameter)
    if parameter.grad is None and (owner is None or owner.counts):
        parameter.grad = torch.zeros_like(parameter)
    grad = None if parameter.grad is None else local(parameter.grad)
    if owner is None and not lies_in_a_flat(parameter):
        assert grad is not None, "made above"
        return grad.contiguous()
    if owner is not None:  # of the slice, where tensor parallelism has cut all copies alike
        placed = Placement(parameter.shape, (owner,))
    ((_, whole),) = gathered([Entry(["a tied parameter"], parameter, placed)], lambda _: grad)
    assert whole is not None, "each rank, or the owner, has its piece"
    return whole.contiguous()


def _keep_of(parameter: nn.Parameter, total: torch.Tensor) -> None:
    """This rank's piece of the sum, where its gradient is."""
    if parameter.grad is None:  # another rank has it
        return
    in_flat = gradient_owner(parameter) is None and lies_in_a_flat(parameter)
    local(parameter.grad).copy_(placement_of(parameter).cut(total) if in_flat else total)
