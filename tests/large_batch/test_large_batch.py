"""Scaling rules, schedules, LARS, LAMB, clipping and the noise scale, against formulas and known numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.large_batch import (
    LAMB,
    LARS,
    BatchSchedule,
    GradualWarmup,
    NoiseScale,
    clip_grad_norm,
    global_norm,
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


def sgd(lr: float = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def test_the_schedule_that_follows_is_resumed_too():
    def build():
        optimizer = sgd(0.8)
        after = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        return optimizer, GradualWarmup(optimizer, steps=3, after=after)

    def rates(optimizer, schedule, steps):
        found = []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    whole = rates(*build(), 9)
    assert whole[3] == pytest.approx(0.8)
    for stop in (2, 3, 5):
        optimizer, schedule = build()
        first = rates(optimizer, schedule, stop)
        again_optimizer, again = build()
        again_optimizer.load_state_dict(optimizer.state_dict())
        again.load_state_dict(schedule.state_dict())
        assert first + rates(again_optimizer, again, 9 - stop) == pytest.approx(whole)


def test_warmup_equals_torchs_own():
    """LinearLR, then the schedule that follows, by SequentialLR: the same rates."""
    mine, theirs = sgd(0.8), sgd(0.8)
    warmup = GradualWarmup(
        mine, 4, 0.25, after=torch.optim.lr_scheduler.CosineAnnealingLR(mine, T_max=10)
    )
    sequence = torch.optim.lr_scheduler.SequentialLR(
        theirs,
        [
            torch.optim.lr_scheduler.LinearLR(theirs, start_factor=0.25, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=10),
        ],
        milestones=[4],
    )
    for _ in range(12):
        assert mine.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        mine.step()
        warmup.step()
        theirs.step()
        sequence.step()


def test_warmup_refuses_another_optimizers_schedule():
    other = torch.optim.lr_scheduler.StepLR(sgd(), 1)
    with pytest.raises(ValueError, match="another optimizer"):
        GradualWarmup(sgd(), 4, after=other)
    with pytest.raises(ValueError, match="at least one step; got 0"):
        GradualWarmup(sgd(), 0)
    with pytest.raises(ValueError, match="0 to 1; got 2"):
        GradualWarmup(sgd(), 4, start_factor=2.0)


def test_batch_schedule():
    optimizer = sgd(0.4)
    schedule = BatchSchedule(optimizer, 64, milestones=[2, 4], factor=2, maximum=200)
    batches, rates = [], []
    for _ in range(6):
        batches.append(schedule.batch)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert batches == [64, 64, 128, 128, 200, 200]
    # Twice the batch stands for half the rate; what the batch could not grow, the rate must fall.
    assert rates == pytest.approx([0.4] * 4 + [0.4 * 200 / 256] * 2)
    assert BatchSchedule(sgd(), 64, [1]).accumulation(ranks=4, micro_batch=8) == 2
    with pytest.raises(ValueError, match="no multiple of 3 ranks times 8"):
        BatchSchedule(sgd(), 64, [1]).accumulation(ranks=3, micro_batch=8)
    with pytest.raises(ValueError, match="rising order"):
        BatchSchedule(sgd(), 64, [4, 2])
    with pytest.raises(ValueError, match="maximum is at least the first batch"):
        BatchSchedule(sgd(), 64, [2], maximum=32)


def test_batch_schedule_resumes_and_follows_a_warmup():
    optimizer = sgd()
    schedule = BatchSchedule(optimizer, 8, milestones=[2])
    warmup = GradualWarmup(optimizer, 3, after=schedule)
    batches = []
    for _ in range(7):
        batches.append(schedule.batch)
        optimizer.step()
        warmup.step()
    assert batches == [8] * 5 + [16] * 2, "its steps count from the end of the warm-up"
    again = BatchSchedule(sgd(), 8, milestones=[2])
    again.load_state_dict(schedule.state_dict())
    assert again.batch == 16


# The same five gradients through other people's implementations: timm 1.0.31's Lars (trust_coeff=0.02, momentum=0.9,
# weight decay 0.01 on the matrix, lr=0.5) and Lamb (max_grad_norm=None, weight decay 0.1 on the matrix, lr=0.01; timm
# adapts groups that have a weight decay), and torch-optimizer 0.3.0's Lamb (clamp_value=10, debias=False).
KNOWN = {
    "timm Lars": (
        [7.590590054198775, 4.1704305744960015, -2.9132027302761774,
         -7.8500318514209715, -5.603396139899436, 2.3352717033722237],
        [-4.734362549158426, 3.5799634572646104, 4.247423139515227],
    ),
    "timm Lamb": (
        [7.5993805669945305, 4.202041934361819, -3.0580021050009782,
         -7.71333186570791, -5.194830865536972, 2.276511724906161],
        [0.4760959849389968, -0.2581060669475451, 0.0321658991120006],
    ),
    "torch-optimizer Lamb": (
        [7.812916020415028, 4.305402342257312, -3.1490447471108265,
         -7.909900436822177, -5.330940079733657, 2.3253605569132896],
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "optimizer", "settings"),
    [
        ("timm Lars", LARS, {"lr": 0.5, "weight_decay": 0.01, "trust": 0.02, "eps": 1e-8}),
        ("timm Lamb", LAMB, {"lr": 0.01, "weight_decay": 0.1}),
        (
            "torch-optimizer Lamb",
            LAMB,
            {"lr": 0.01, "weight_decay": 0.1, "bias_correction": False, "max_weight_norm": 10.0},
        ),
    ],
)
def test_known_implementations_give_the_same_numbers(name, optimizer, settings):
    w = nn.Parameter(torch.cos(torch.arange(6, dtype=torch.double)).view(2, 3) * 8)
    bias = nn.Parameter(torch.tensor([0.5, -0.25, 0.0], dtype=torch.double))
    one = optimizer([w, bias], **settings)
    for step in range(5):
        for p in (w, bias):
            waves = torch.arange(p.numel(), dtype=torch.double) * 1.7 + step
            p.grad = torch.sin(waves).view_as(p) * (1 + step)
        one.step()
    matrix, vector = KNOWN[name]
    assert torch.allclose(w.flatten(), torch.tensor(matrix, dtype=torch.double), rtol=0, atol=1e-10)
    if vector is not None:
        assert torch.allclose(bias, torch.tensor(vector, dtype=torch.double), rtol=0, atol=1e-10)


def test_without_adaptation_lars_is_sgd_and_lamb_is_adamw():
    """One-dimensional parameters: no ratio and no decay, as in the authors' code."""
    for mine, theirs in (
        (lambda p: LARS(p, lr=0.1, momentum=0.9, weight_decay=0.5), torch.optim.SGD),
        (lambda p: LAMB(p, lr=0.1, eps=1e-8, weight_decay=0.5), torch.optim.Adam),
    ):
        a, b = nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.arange(3.0))
        one = mine([a])
        other = theirs([b], lr=0.1, **({"momentum": 0.9} if theirs is torch.optim.SGD else {}))
        for step in range(4):
            a.grad = torch.tensor([1.0, -2.0, step])
            b.grad = a.grad.clone()
            one.step()
            other.step()
        assert torch.allclose(a, b, atol=1e-6)


def test_the_trust_ratio_of_half_precision_weights_does_not_overflow():
    """300 squared is beyond fp16's 65,504, and so is the norm of many such weights."""
    for optimizer in (LARS, LAMB):
        w = nn.Parameter(torch.full((256, 256), 300.0, dtype=torch.float16))  # |w| = 76,800
        w.grad = torch.full_like(w, 0.5)
        if optimizer is LARS:
            LARS([w], lr=1.0, momentum=0.0, trust=0.5).step()
        else:
            LAMB([w], lr=0.5).step()
        assert w.float().mean().item() == pytest.approx(150, rel=0.01)


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_layer_wise_optimizers_resume(optimizer):
    def train(weight, one, steps):
        for step in steps:
            weight.grad = torch.cos(torch.arange(6.0) + step).view(2, 3)
            one.step()

    straight = nn.Parameter(torch.ones(2, 3))
    train(straight, optimizer([straight], lr=0.1), range(6))
    first = nn.Parameter(torch.ones(2, 3))
    one = optimizer([first], lr=0.1)
    train(first, one, range(3))
    second = nn.Parameter(first.detach().clone())
    again = optimizer([second], lr=0.1)
    again.load_state_dict(one.state_dict())
    train(second, again, range(3, 6))
    assert torch.equal(second, straight)


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_layer_wise_optimizers_refuse_what_makes_no_sense(optimizer):
    w = [nn.Parameter(torch.ones(1))]
    with pytest.raises(ValueError, match=r"-1"):
        optimizer(w, lr=-1.0)
    with pytest.raises(ValueError, match=r"-0\.5"):
        optimizer(w, lr=1.0, weight_decay=-0.5)


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


def test_a_layer_that_starts_at_zero_moves():
    for optimizer in (LAMB([nn.Parameter(torch.zeros(1, 3))], lr=0.1, eps=0.0),
                      LARS([nn.Parameter(torch.zeros(1, 3))], lr=0.1)):  # fmt: skip
        (w,) = optimizer.param_groups[0]["params"]
        w.grad = torch.ones(1, 3)
        optimizer.step()
        assert torch.allclose(w, torch.full((1, 3), -0.1))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_global_norm_of_replicated_and_sharded_gradients(world_size):
    torch.manual_seed(0)
    shared, spread = torch.randn(7), torch.randn(2)  # on three ranks one shard is empty

    def clip():
        rank, size = dist.get_rank(), dist.get_world_size()
        found = []
        for max_norm in (0.5, 100.0):  # below the norm, and above: then nothing changes
            a = nn.Parameter(torch.zeros(7))
            a.grad = shared.clone()
            mine = spread.tensor_split(size)[rank]
            b = nn.Parameter(torch.zeros_like(mine))
            b.grad = mine.clone()
            frozen = nn.Parameter(torch.zeros(2))  # has no gradient
            norm = clip_grad_norm([a, frozen], max_norm, sharded=[b])
            found.append((norm, a.grad, b.grad))
        only_rank_0 = nn.Parameter(torch.zeros(1))
        only_rank_0.grad = torch.tensor([3.0])
        holders = [only_rank_0] if rank == 0 else []  # the others hold nothing at all
        found.append(clip_grad_norm(sharded=holders, max_norm=1.0))
        inf = nn.Parameter(torch.zeros(1))
        inf.grad = torch.tensor([float("inf") if rank == 0 else 1.0])
        try:
            clip_grad_norm(sharded=[inf], error_if_nonfinite=True)
        except RuntimeError as error:
            found.append(str(error))
        return found

    run = launch(clip, world_size)
    for i, max_norm in enumerate((0.5, 100.0)):
        a, b = nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(2))
        a.grad, b.grad = shared.clone(), spread.clone()
        norm = nn.utils.clip_grad_norm_([a, b], max_norm)
        for got in run:
            assert got[i][0].float().item() == pytest.approx(norm.item())
            assert torch.allclose(got[i][1], a.grad)
        assert torch.allclose(torch.cat([r[i][2] for r in run]), b.grad)
    for got in run:
        assert got[2].item() == pytest.approx(3.0)
        assert "norm is inf" in got[3], "one rank's infinity stops all of them, and none waits"


def test_a_tensor_alone_is_one_parameter():
    """As torch's own takes it. Its rows, which iterating would give, have no gradients: the norm would be 0."""
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm(p, 1.0).item() == pytest.approx(5.0)
    assert p.grad.norm().item() == pytest.approx(1.0)
    assert global_norm(torch.tensor([3.0, 4.0])).item() == pytest.approx(5.0)


def test_the_norm_of_small_and_of_double_gradients():
    # fp16: 1e-4 squared is 1e-8, below the smallest fp16; double: float32 would lose the digits.
    half = torch.full((10_000,), 1e-4, dtype=torch.float16)
    assert global_norm([half]).item() == pytest.approx(1e-2, rel=1e-3)
    double = torch.tensor([1.0, 1e-5], dtype=torch.double)
    assert global_norm([double]).item() == pytest.approx(double.norm().item(), rel=1e-14)
    assert global_norm([double]).item() > 1.0


def test_clipping_refuses_what_is_not_finite_when_asked():
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([float("inf")])
    with pytest.raises(RuntimeError, match="norm is inf"):
        clip_grad_norm([p], 1.0, error_if_nonfinite=True)


def test_noise_scale_of_a_known_distribution():
    """Gradients drawn with |G|^2 = 4 and tr(S) = 100 have the noise scale 25."""

    def measure():
        generator = torch.Generator().manual_seed(dist.get_rank())
        scale = NoiseScale(batch=4, decay=1.0)
        for _ in range(1200):
            true = torch.zeros(10)
            true[0] = 2.0
            # variance 10 a value, batch 4
            local = true + torch.randn(10, generator=generator) * (10.0 / 4) ** 0.5
            averaged = local.clone()
            dist.all_reduce(averaged)
            averaged /= dist.get_world_size()
            scale.update([local], [averaged])
        return scale.value

    run = launch(measure, 2)
    assert run[0] == pytest.approx(25, rel=0.25)
    assert run[0] == pytest.approx(run[1])


def test_noise_scale_in_ddps_hook_equals_update():
    """The hook sees each bucket before and after the average, so it needs no copy of the gradients."""

    def train():
        rank, size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(rank)
        x, y = torch.randn(3, 8, 6), torch.randn(3, 8, 2)
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 2)) for _ in range(3)]
        for net in nets[1:]:
            net.load_state_dict(nets[0].state_dict())
        by_hand, *hooked = [NoiseScale(batch=8, decay=0.5) for _ in range(3)]
        models = [TorchDDP(nets[1], bucket_cap_mb=1e-4), DistributedDataParallel(nets[2])]
        for model, scale in zip(models, hooked, strict=True):
            model.register_comm_hook(None, scale.hook)
        for step in range(3):
            nn.functional.mse_loss(nets[0](x[step]), y[step]).backward()
            local = [p.grad.clone() for p in nets[0].parameters()]
            for p in nets[0].parameters():
                dist.all_reduce(p.grad)
                p.grad /= size
            by_hand.update(local, [p.grad for p in nets[0].parameters()])
            for model, scale in zip(models, hooked, strict=True):
                nn.functional.mse_loss(model(x[step]), y[step]).backward()
                scale.step()
            for p, *others in zip(*(net.parameters() for net in nets), strict=True):
                assert all(torch.allclose(p.grad, other.grad, atol=1e-6) for other in others)
            for net in nets:
                net.zero_grad()
        with pytest.raises(ValueError, match="no backward pass"):
            hooked[0].step()
        return [(s.signal, s.noise, s.steps) for s in (by_hand, *hooked)]

    for by_hand, torchs, ours in launch(train, 2):
        assert torchs == pytest.approx(by_hand, rel=1e-4)
        assert ours == pytest.approx(by_hand, rel=1e-4)


def test_noise_scale_averages_from_the_first_step_on():
    """signal and noise are means, not sums that start at zero: after one step they are that step's."""

    def measure():
        found = []
        for decay in (0.9, 0.0):
            scale = NoiseScale(batch=2, decay=decay)
            for true in (2.0, 4.0):
                mine = torch.tensor([true + (1 if dist.get_rank() == 0 else -1)])
                scale.update([mine], [torch.tensor([true])])
                found.append((scale.signal, scale.noise, scale.value))
        return found

    # |g_b|^2 = true^2 + 1, |g_B|^2 = true^2, b = 2, B = 4: |G|^2 = true^2 - 1, tr(S) = 4.
    run = launch(measure, 2)[0]
    assert run[0] == pytest.approx((3.0, 4.0, 4 / 3))
    assert run[1] == pytest.approx((9.0, 4.0, 4 / 9)), "two steps weigh the same at first"
    assert run[3] == pytest.approx((15.0, 4.0, 4 / 15)), "decay 0 keeps the last step only"


def test_noise_scale_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="at least one sample; got 0"):
        NoiseScale(0)
    with pytest.raises(ValueError, match=r"0 to 1; got 1\.5"):
        NoiseScale(4, decay=1.5)
    assert math.isnan(NoiseScale(4).value)


def test_noise_scale_needs_two_ranks():
    from dtcourse.launch import RankFailure

    with pytest.raises(RankFailure, match="needs two ranks"):
        launch(lambda: NoiseScale(4).update([torch.ones(1)], [torch.ones(1)]), 1)
