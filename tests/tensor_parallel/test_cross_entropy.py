"""The loss of cut logits: torch's own, with every option, and three numbers a token on the wire."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.parameters.cuts import Sliced
from dtcourse.tensor_parallel import cross_entropy, mappings
from dtcourse.verify import compare
from tests.turns import taking_turns


def both(logits, targets, dtype=torch.double, **options):
    """Loss and gradient of the logits, ours and torch's."""
    V = logits.shape[-1]
    shard = Sliced(0, V)
    mine = logits.narrow(-1, min(shard.start, V), shard.used).to(dtype).requires_grad_()
    whole = logits.clone().to(dtype).requires_grad_()
    ours = cross_entropy(mine, targets, num_classes=V, **options)
    theirs = F.cross_entropy(whole.flatten(0, -2), targets.flatten(), **options)
    for loss in (ours, theirs):
        loss.flatten().square().sum().backward()  # one that is not the same for each target
    padded = F.pad(mine.grad, (0, shard.length - shard.used))
    grad = mappings.gather(padded, -1)[..., :V]
    return (
        {"loss": ours.detach().flatten(), "gradient": grad},
        {"loss": theirs.detach().flatten(), "gradient": whole.grad},
    )


def against_torch():
    generator = torch.Generator().manual_seed(0)
    for V, shape in (
        (24, (7,)),
        (13, (2, 5)),
        (5, (3,)),
    ):  # even on all, uneven, a slice of nothing on 4 ranks
        logits = 3 * torch.randn(*shape, V, dtype=torch.double, generator=generator)
        targets = torch.randint(V, shape, generator=generator)
        ignored = targets.clone()
        ignored.view(-1)[::3] = -100
        other = targets.masked_fill(targets == int(targets.view(-1)[0]), 2)
        options = itertools.product(("mean", "sum", "none"), (0.0, 0.1, 1.0))
        for reduction, smoothing in options:
            chosen = {"reduction": reduction, "label_smoothing": smoothing}
            compare(*both(logits, targets, **chosen), tolerance=1e-10, norm=2)
            compare(*both(logits, ignored, **chosen), tolerance=1e-10, norm=2)
            compare(*both(logits, other, ignore_index=2, **chosen), tolerance=1e-10, norm=2)
    # Numbers whose exponentials are infinite, and such as are all zero.
    for scale, shift in ((1e4, 0.0), (1.0, 1e6), (1.0, -1e6)):
        far = scale * torch.randn(4, 12, dtype=torch.double, generator=generator) + shift
        compare(*both(far, torch.tensor([0, 3, 11, 7])), tolerance=1e-8, norm=2)
    masked = torch.randn(2, 12, generator=generator)
    masked[:, 4:] = -torch.inf  # a rank may have nothing but these
    compare(*both(masked, torch.tensor([0, 3])), tolerance=1e-10, norm=2)
    compare(*both(logits, targets, torch.float32), tolerance=1e-5, norm=2)
    compare(*both(logits, targets, torch.bfloat16), tolerance=2e-2, norm=2)
    nothing = torch.full_like(targets, -100)
    ours, theirs = both(logits, nothing)
    assert ours["loss"].isnan().all(), "as torch's"
    assert theirs["loss"].isnan().all()


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/tensor_parallel/")]
)
def test_it_is_torch_s_with_every_option(world_size):
    launch(against_torch, world_size)


def counted(smoothing):
    rank, size = dist.get_rank(), dist.get_world_size()
    logits = torch.randn(4, 5, 12 // size, requires_grad=True)
    targets = torch.zeros(4, 5, dtype=torch.long)
    with traffic.counting() as forward:
        loss = cross_entropy(logits, targets, label_smoothing=smoothing)
    with traffic.counting() as backward:
        loss.backward()
    counts = (20 + 1, 20 * (3 if smoothing else 2))
    each = [ring.all_reduce_volume(n, size, rank).elements * 4 for n in counts]
    return forward.calls(), forward.bytes_sent(), sum(each), backward.calls(), loss.item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_two_all_reduces_forward_and_none_backward(smoothing):
    run = launch(counted, 3, smoothing, backend="ring")
    for calls, sent, formula, in_backward, _ in run:
        assert (calls, in_backward) == (2, 0)
        assert sent == formula
    assert len({loss for *_, loss in run}) == 1


def mistakes():
    said = []
    logits, targets = torch.randn(4, 6), torch.tensor([0, 5, 11, 3])
    for x, t, options in (
        (logits, targets[:3], {}),
        (logits, targets, {"num_classes": 13}),
        (logits, targets + 1, {}),
        (logits, targets, {"reduction": "average"}),
        (logits, targets, {"label_smoothing": 1.5}),
    ):
        try:
            cross_entropy(x, t, **options)
        except ValueError as error:
            said.append(str(error))
    return said


def test_mistakes_are_named():
    for shapes, classes, target, reduction, smoothing in launch(mistakes, 2):
        assert "targets of shape (4,); got (3,)" in shapes
        assert "13 classes on 2 ranks are 7 on each" in classes
        assert "target 12 is none of the 12 classes" in target
        assert "'average'" in reduction
        assert "1.5" in smoothing
