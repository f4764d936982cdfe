"""Scaling rules, schedules, LARS, LAMB, clipping and the noise scale, against formulas and known numbers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.large_batch import (
    LAMB,
    LARS,
    BatchSchedule,
    GradualWarmup,
    NoiseScale,
    clip_grad_norm,
    linear_scaling,
    square_root_scaling,
)
from dtcourse.large_batch.scaling import effective_batch


def test_the_rules():
    assert effective_batch(32, ranks=8, accumulation=4) == 1024
    # Goyal et al., table 1: 0.1 at 256 images, 3.2 at 8,192.
    assert linear_scaling(0.1, 256, 8192) == pytest.approx(3.2)
    assert square_root_scaling(1e-3, 256, 1024) == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="at least one sample"):
        linear_scaling(0.1, 0, 8)


def test_warmup_reaches_the_rate_and_hands_over():
    w = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=0.8)
    after = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)
    warmup = GradualWarmup(optimizer, steps=4, start_factor=0.25, after=after)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        warmup.step()
    assert rates == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8, 0.8, 0.08, 0.08, 0.08])


def test_warmup_resumes_where_it_was():
    def build():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        return optimizer, GradualWarmup(optimizer, steps=10)

    optimizer, warmup = build()
    for _ in range(3):
        optimizer.step()
        warmup.step()
    again_optimizer, again = build()
    again.load_state_dict(warmup.state_dict())
    again_optimizer.load_state_dict(optimizer.state_dict())
    again_optimizer.step()
    again.step()
    assert again_optimizer.param_groups[0]["lr"] == pytest.approx(0.4)


def test_batch_schedule():
    schedule = BatchSchedule(64, milestones=[2, 4], factor=2, maximum=200)
    batches = []
    for _ in range(6):
        batches.append(schedule.batch)
        schedule.step()
    assert batches == [64, 64, 128, 128, 200, 200]
    assert BatchSchedule(64, [1]).accumulation(ranks=4, micro_batch=8) == 2
    with pytest.raises(ValueError, match="no multiple of 3 ranks times 8"):
        BatchSchedule(64, [1]).accumulation(ranks=3, micro_batch=8)


def test_lars_by_hand():
    """One step on numbers that a pencil can follow."""
    w = nn.Parameter(torch.tensor([[3.0, 4.0]]))  # |w| = 5
    bias = nn.Parameter(torch.tensor([1.0]))
    optimizer = LARS([w, bias], lr=2.0, momentum=0.5, weight_decay=0.1, trust=0.01, eps=0.0)
    for _ in range(2):
        w.grad, bias.grad = torch.tensor([[0.0, 2.0]]), torch.tensor([1.0])
        if _ == 0:
            local = 0.01 * 5 / (2 + 0.1 * 5)
            first = torch.tensor([[3.0, 4.0]]) - 2 * local * torch.tensor([[0.3, 2.4]])
        optimizer.step()
        if _ == 0:
            assert torch.allclose(w, first)
            assert bias.item() == pytest.approx(1.0 - 2.0), "one-dimensional: plain SGD, no decay"
    velocity = 0.5 * 2 * local * torch.tensor([[0.3, 2.4]])
    again = 0.01 * first.norm() / (2 + 0.1 * first.norm())
    velocity += 2 * again * (torch.tensor([[0.0, 2.0]]) + 0.1 * first)
    assert torch.allclose(w, first - velocity)


def test_a_layer_moves_by_a_share_of_its_length_whatever_its_gradient():
    for scale in (1e-6, 1.0, 1e6):
        w = nn.Parameter(torch.full((4, 4), 1.0))
        before = w.detach().clone()
        w.grad = torch.full((4, 4), scale)
        LARS([w], lr=1.0, momentum=0.0, trust=0.001, eps=0.0).step()
        assert ((w - before).norm() / before.norm()).item() == pytest.approx(0.001, rel=1e-3)


def test_lamb_takes_adamws_direction_and_a_length_of_its_own():
    """Against a known implementation's numbers: torch's AdamW gives the direction, |w| the length."""
    torch.manual_seed(0)
    start = torch.randn(5, 3)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    lamb = LAMB([mine], lr=1e-2, eps=1e-6, weight_decay=0.0)
    adam = torch.optim.AdamW([theirs], lr=1e-2, eps=1e-6, weight_decay=0.0)
    for i in range(4):
        g = torch.randn(5, 3, generator=torch.Generator().manual_seed(i))
        mine.grad, theirs.grad = g.clone(), g.clone()
        before_mine, before_theirs = mine.detach().clone(), theirs.detach().clone()
        lamb.step()
        adam.step()
        # Same direction as Adam's step, with the length lr * |w|.
        step, reference = before_mine - mine, before_theirs - theirs
        direction = step / step.norm()
        assert torch.allclose(direction, reference / reference.norm(), atol=1e-5)
        assert step.norm().item() == pytest.approx(1e-2 * before_mine.norm().item(), rel=1e-5)


def test_lamb_moves_a_layer_that_starts_at_zero():
    w = nn.Parameter(torch.zeros(3))
    w.grad = torch.ones(3)
    LAMB([w], lr=0.1, eps=0.0).step()
    assert torch.allclose(w, torch.full((3,), -0.1))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_global_norm_of_replicated_and_sharded_gradients(world_size):
    torch.manual_seed(0)
    shared, spread = torch.randn(7), torch.randn(10)

    def clip():
        rank, size = dist.get_rank(), dist.get_world_size()
        a = nn.Parameter(torch.zeros(7))
        a.grad = shared.clone()
        mine = spread.tensor_split(size)[rank]
        b = nn.Parameter(torch.zeros_like(mine))
        b.grad = mine.clone()
        norm = clip_grad_norm([a], 0.5, sharded=[b])
        return norm, a.grad, b.grad

    a, b = nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(10))
    a.grad, b.grad = shared.clone(), spread.clone()
    norm = nn.utils.clip_grad_norm_([a, b], 0.5)
    run = launch(clip, world_size)
    for got in run:
        assert torch.allclose(got[0], norm)
        assert torch.allclose(got[1], a.grad)
    assert torch.allclose(torch.cat([r[2] for r in run]), b.grad)


def test_clipping_refuses_what_is_not_finite_when_asked():
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([float("inf")])
    with pytest.raises(RuntimeError, match="norm is inf"):
        clip_grad_norm([p], 1.0, error_if_nonfinite=True)


def test_noise_scale_of_a_known_distribution():
    """Gradients drawn with |G|^2 = 4 and tr(S) = 100 have the noise scale 25."""

    def measure():
        generator = torch.Generator().manual_seed(dist.get_rank())
        scale = NoiseScale(batch=4, decay=0.999)
        for _ in range(4000):
            true = torch.zeros(10)
            true[0] = 2.0
            local = (
                true + torch.randn(10, generator=generator) * (10.0 / 4) ** 0.5
            )  # variance 10 a value, batch 4
            averaged = local.clone()
            dist.all_reduce(averaged)
            averaged /= dist.get_world_size()
            scale.update([local], [averaged])
        return scale.value

    run = launch(measure, 2)
    assert run[0] == pytest.approx(25, rel=0.15)
    assert run[0] == pytest.approx(run[1])


def test_noise_scale_needs_two_ranks():
    from dtcourse.launch import RankFailure

    with pytest.raises(RankFailure, match="needs two ranks"):
        launch(lambda: NoiseScale(4).update([torch.ones(1)], [torch.ones(1)]), 1)
