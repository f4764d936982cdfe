"""Stages that pass several tensors to the next one, some of which need no gradient; and where messages are put."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import device
from dtcourse.launch import launch
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.performer import device_of
from tests.pipeline_parallel.samples import MAKE

WIDTH, LENGTH = 6, 5


class Embed(nn.Module):
    """Tokens and a mask in; the mask as floats and the positions go along."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH)

    def forward(self, tokens, mask):
        positions = torch.arange(LENGTH, device=tokens.device).expand_as(tokens)
        return self.embed(tokens), mask.to(torch.double), positions


class Middle(nn.Module):
    """Passes what came in on beside its own output, for the last stage; its own use of it is another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.places = nn.Linear(WIDTH, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, h, mask, positions):
        y = torch.tanh(self.linear(h * mask.unsqueeze(-1)) + self.places(positions))
        return y, h, mask


class Unmindful(nn.Module):
    """Does not use `skip`, whose gradient the stage before waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h, skip, mask):
        return torch.tanh(self.linear(h)), h, mask


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, h, skip, mask):
        return self.linear(h + skip), mask


def loss(output, target):
    """Of the tokens that the mask lets through, by weights that come with the target."""
    (y, mask), (labels, weights) = output, target
    each = F.cross_entropy(y.transpose(1, 2), labels, reduction="none") * mask
    return (each.sum(1) * weights).mean()


def model(number: int) -> nn.ModuleList:
    torch.manual_seed(1)
    between = [Middle(), Unmindful()][: number - 2]
    return nn.ModuleList([Embed(), *between, Last()]).double()


def batch(samples: int):
    made = torch.Generator().manual_seed(3)
    tokens = torch.randint(7, (samples, LENGTH), generator=made)
    mask = torch.rand(samples, LENGTH, generator=made) < 0.7
    weights = torch.rand(samples, generator=made, dtype=torch.double)
    return (tokens, mask), (tokens % 3, weights)


def gradients(schedule: Schedule, recompute: bool):
    """On a rank: by stage its gradients, and the loss; the second of two equal steps."""
    stages = [model(schedule.num_stages)[s] for s in schedule.stages_of(dist.get_rank())]
    pipeline = Pipeline(stages, schedule, loss, recompute=recompute)
    for _ in range(2):
        for one in stages:
            one.zero_grad()
        told = pipeline.step(*batch(9))
    return [[p.grad for p in one.parameters()] for one in stages], told


@pytest.mark.parametrize(
    ("name", "p", "recompute"),
    [("1F1B", 3, False), ("ZB-H1", 4, False), ("GPipe", 4, True), ("ZB-V", 2, False)],
)
def test_several_tensors_are_one_process(name, p, recompute):
    schedule = MAKE[name](p, 4)
    whole = model(schedule.num_stages)
    (tokens, mask), target = batch(9)
    values = (tokens, mask)
    for one in whole:
        values = one(*values)
    expected = loss(values, target)
    expected.backward()
    run = launch(gradients, p, schedule, recompute)
    for rank in range(p):
        for stage, found in zip(schedule.stages_of(rank), run[rank][0], strict=True):
            wanted = [q.grad for q in whole[stage].parameters()]
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert run[schedule.rank_of[-1]][1] == pytest.approx(expected.item(), rel=1e-12)


def test_gradients_go_back_only_for_what_needs_them():
    run = launch(gradients, 3, schedules.one_f_one_b(3, 4), False, record=True)
    one, samples, steps = LENGTH * WIDTH * 8, 9, 2  # bytes of a sample's activations
    mask = positions = LENGTH * 8
    header = 12 * 8
    sent = [run.traffic.bytes_sent(rank=rank) for rank in range(3)]
    forwards = [one + mask + positions, 2 * one + mask]
    backwards = [one, 2 * one]
    headers = [3, 3, 0]  # gradients have none
    assert sent == [
        steps * samples * forwards[0] + 4 * header * headers[0],
        steps * samples * (forwards[1] + backwards[0]) + 4 * header * headers[1],
        steps * samples * backwards[1] + 4 * header * headers[2],
    ]


class Returns(nn.Module):
    def __init__(self, value) -> None:
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


class Grows(nn.Linear):
    """One output more in every call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return (super().forward(x),) * self.calls


def mistakes() -> list[str]:
    """Both ranks make each; what the first one is told."""
    schedule, x = schedules.one_f_one_b(2, 1), torch.ones(2, 4)
    many = tuple(torch.ones(2, requires_grad=True) for _ in range(33))
    growing, said = Grows(4, 4), []
    calls = [
        ({"h": x}, (x, x)),
        ((x, None), (x, x)),
        (x, ((x, x[:1]), x)),
        (many, (x, x)),
        (torch.ones([1] * 9, requires_grad=True), (x, x)),
        (torch.ones(2, dtype=torch.complex64, requires_grad=True), (x, x)),
    ]
    for value, (given, target) in calls:
        pipeline = Pipeline([Returns(value)], schedule, F.mse_loss)
        with pytest.raises(ValueError) as caught:
            pipeline.step(given, target)
        said.append(str(caught.value))
    stage = growing if dist.get_rank() == 0 else Unpacks()
    pipeline = Pipeline([stage], schedule, F.mse_loss)
    pipeline.step(x, x)
    with pytest.raises(ValueError) as caught:
        pipeline.step(x, x)
    dist.barrier()  # a rank that left now would take its words with it
    return [*said, str(caught.value)]


class Unpacks(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, *several):
        return super().forward(sum(several))


def test_what_cannot_be_passed_is_said():
    first, second = launch(mistakes, 2, timeout=60)
    kind, inside, uneven, many, dims, dtype, growing = first
    assert kind == "Stage 0 returns a tensor or a tuple of tensors; got dict."
    assert inside.endswith("got a tuple of Tensor, NoneType.")
    assert uneven == "The tensors of x have the same samples on dim 0; they have [2, 1] of them."
    assert "at most 32 tensors" in many and "got 33 tensors" in many
    assert "at most 8 dims" in dims and "9 dims" in dims
    assert "complex64" in dtype
    assert growing.count("[2, 4] torch.float32 (needs a gradient)") == 3
    assert "made [2, 4] torch.float32 (needs a gradient) in the first step" in growing
    # The other rank hears the same words.
    for mine, theirs in zip(second, first, strict=True):
        assert mine.startswith("Rank 1 cannot go on") and f"Rank 0: ValueError: {theirs}" in mine


def test_messages_come_where_the_stages_weights_are():
    assert device_of([nn.Tanh(), nn.Linear(2, 2, device="meta")]) == torch.device("meta")
    assert device_of([nn.Tanh()]) == device.current()


def on_gpu(schedule: Schedule):
    here = device.current()
    stages = [model(schedule.num_stages)[s].to(here) for s in schedule.stages_of(dist.get_rank())]
    pipeline = Pipeline(stages, schedule, loss)
    x, target = (tuple(one.to(here) for one in several) for several in batch(9))
    for _ in range(2):
        for one in stages:
            one.zero_grad()
        pipeline.step(x, target)
    assert pipeline.mail.device == here
    return [p.grad.cpu() for one in stages for p in one.parameters()]


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_gpus_it_is_the_same():
    schedule = zero_bubble.zb_h1(2, 4)
    (first, _), (second, _) = launch(gradients, 2, schedule, False)
    for found, (wanted,) in zip(
        launch(on_gpu, 2, schedule, device="cuda"), (first, second), strict=True
    ):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
