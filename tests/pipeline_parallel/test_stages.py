"""Stages that `split` makes: tuples from layer to layer, and weights that stages on several ranks share."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse.launch import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.engine import Pipeline, split
from dtcourse.pipeline_parallel.layers import layers_of
from dtcourse.pipeline_parallel.pipedream import PipeDream
from dtcourse.pipeline_parallel.stages import tied_parameters

WIDTH = 4


class Masked(nn.Module):
    """Two arguments, both passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        return self.linear(x) * mask, mask


class OfPair(nn.Module):
    """One argument, which is a tuple, as nn.Sequential passes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, pair):
        x, mask = pair
        return self.linear(x), mask


class Last(Masked):
    def forward(self, x, mask=None):
        return self.linear(x) * mask


def with_tuples() -> list[nn.Module]:
    torch.manual_seed(2)
    return [one().double() for one in (Masked, OfPair, Masked, OfPair, Last)]


def tuples_cut_at(cuts: list[int]) -> list[torch.Tensor | None]:
    """This rank's gradients; all layers' places."""
    schedule, layers = schedules.one_f_one_b(len(cuts) + 1, 2), with_tuples()
    ranges = [range(a, b) for a, b in itertools.pairwise([0, *cuts, len(layers)])]
    x = torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.double).view(4, WIDTH)
    stages = split(layers, ranges, schedule, dist.get_rank())
    Pipeline(stages, schedule, F.mse_loss).step((x, torch.ones_like(x) / 2), x)
    return [layer.linear.weight.grad for layer in layers]


@pytest.mark.parametrize("cuts", [[1], [2], [3], [4], [1, 3], [2, 3]])
def test_a_tuple_passes_from_layer_to_layer_wherever_the_model_is_cut(cuts):
    layers = with_tuples()
    x = torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.double).view(4, WIDTH)
    value = x, torch.ones_like(x) / 2
    for layer in layers:
        value = layer(value) if isinstance(layer, OfPair) else layer(*value)
    F.mse_loss(value, x).backward()
    found = [
        next(one for one in of_layer if one is not None)
        for of_layer in zip(*launch(tuples_cut_at, len(cuts) + 1, cuts), strict=True)
    ]
    for layer, grad in zip(layers, found, strict=True):
        torch.testing.assert_close(grad, layer.linear.weight.grad, rtol=1e-12, atol=1e-14)


SMALL = TransformerConfig(vocab=11, d_model=8, n_layers=2, n_heads=2, max_length=6, tied=True)


def language_model() -> list[nn.Module]:
    torch.manual_seed(0)
    return layers_of(Transformer(SMALL).double())


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (8, 6), generator=torch.Generator().manual_seed(0))


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def trained_tied(schedule: Schedule, shared) -> dict[str, torch.Tensor]:
    """What this rank's stages hold after three steps, each on two batches, by the model's names."""
    layers = language_model()
    ranges = balance([1.0] * len(layers), schedule.num_stages)
    stages = split(layers, ranges, schedule, dist.get_rank())
    pipeline = Pipeline(stages, schedule, loss, shared=shared)
    trained = {
        p: 0 for one in stages for p in one.parameters()
    }  # on one rank a tied one is one parameter
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        pipeline.step(tokens(), tokens().flip(1))
        pipeline.step(tokens().flip(0), tokens())
        optimizer.step()
    mine = [i for stage in schedule.stages_of(dist.get_rank()) for i in ranges[stage]]
    return {f"{i}.{name}": p.detach() for i in mine for name, p in layers[i].named_parameters()}


@pytest.mark.parametrize("schedule", [schedules.one_f_one_b(3, 4), zero_bubble.zb_v(2, 4)], ids=str)
def test_a_tied_model_trains_as_one_process_without_a_word_of_it(schedule):
    alone = nn.Sequential(*language_model())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss(alone(tokens()), tokens().flip(1)).backward()
        loss(alone(tokens().flip(0)), tokens()).backward()
        optimizer.step()
    expected = dict(alone.named_parameters(remove_duplicate=False))
    found = {
        k: v
        for held in launch(trained_tied, schedule.num_ranks, schedule, None)
        for k, v in held.items()
    }
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name].detach(), rtol=1e-9, atol=1e-11)


def test_without_the_sum_the_copies_part():
    first, _, last = launch(trained_tied, 3, schedules.one_f_one_b(3, 4), ())
    assert not torch.allclose(first["0.token_embedding.weight"], last["3.output.weight"])


def tied_round_and_round() -> list[torch.Tensor]:
    """Three weights, each on another two of three ranks."""
    torch.manual_seed(0)
    a, b, c = (nn.Linear(WIDTH, WIDTH).double() for _ in range(3))
    schedule, x = schedules.one_f_one_b(3, 2), torch.ones(4, WIDTH).double()
    layers = [a, b, b, c, c, a]
    stages = split(layers, [range(2), range(2, 4), range(4, 6)], schedule, dist.get_rank())
    Pipeline(stages, schedule, F.mse_loss).step(x, 0 * x)
    return [one.weight.grad for one in (a, b, c)]


def test_ranks_that_share_with_several_others_sum_with_each():
    (a, b, _), (_, b_too, c), (a_too, _, c_too) = launch(tied_round_and_round, 3, timeout=60)
    assert torch.equal(a, a_too) and torch.equal(b, b_too) and torch.equal(c, c_too)


def test_what_is_on_several_stages_is_tied_and_says_whether_it_is_trained():
    layers = language_model()
    (tied,) = tied_parameters(layers, [range(2), range(2, 4)])
    assert tied.names == {0: "0.token_embedding.weight", 1: "1.output.weight"}
    assert tied_parameters(layers, [range(4)]) == []
    assert tied.trained
    layers[0].token_embedding.requires_grad_(False)
    assert tied_parameters(layers, [range(2), range(2, 4)]) == [tied._replace(trained=False)]


def pipedream_of_tied() -> str:
    schedule = schedules.pipedream(dist.get_world_size(), 4)
    layers = language_model()
    stages = split(
        layers, balance([1.0] * len(layers), schedule.num_stages), schedule, dist.get_rank()
    )
    with pytest.raises(ValueError, match="tied weights") as caught:
        PipeDream(stages, schedule, loss, lambda weights: torch.optim.SGD(weights, lr=0.5))
    return str(caught.value)


def test_pipedream_refuses_a_tied_model_on_every_rank():
    said = set(launch(pipedream_of_tied, 3, timeout=60))
    assert len(said) == 1
    assert "Stages 0 and 2 share a parameter (stage 2's 1.output.weight)" in said.pop()
