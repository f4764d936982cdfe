"""Counted operations equal closed forms to the last one; torch's own counter is shown beside, where it is wrong too."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import launch
from dtcourse.models import flops
from dtcourse.models.transformer import FusedCausalAttention, Transformer, TransformerConfig
from dtcourse.profiling.operators import CountOperators, count
from tests.cut_mlp import tensor_parallel_step

B, S = 2, 32
SMALL = {"n_layers": 2, "d_model": 64}


def torchs(step):
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def model_and_step(config, fused):
    model, tokens = Transformer(config), torch.randint(0, config.vocab, (B, S))
    for block in model.blocks if fused else ():
        block.attention.core = FusedCausalAttention()
    return model, lambda: model.loss(tokens, tokens).backward()


def attention_flops(config):
    """Forward and backward, of both products of all layers."""
    return 3 * 4 * config.n_layers * S * config.d_model * B * S


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(**SMALL),
        TransformerConfig(
            **SMALL, n_kv_heads=2, mlp="swiglu", positions="rotary", norm="rms", tied=False
        ),
        TransformerConfig(**SMALL, experts=4, top_k=2, shared_experts=1),
    ],
    ids=["dense", "grouped heads", "experts"],
)
def test_a_transformers_step_is_the_closed_form(config, fused):
    _, step = model_and_step(config, fused)
    counted, closed = count(step), flops.per_token(config, S) * B * S
    assert counted.model_flops == closed
    # Fused attention computes the scores again in its backward: one product where the model has six.
    assert counted.recomputed == (attention_flops(config) // 6 if fused else 0)
    # torch's counter takes the fused kernels of a CPU for nothing.
    assert torchs(step) == closed - (attention_flops(config) if fused else 0)


PRODUCT = 2 * 8 * 64 * 64


@pytest.mark.parametrize(
    ("reentrant", "early_stop", "executed"),
    [(True, True, 524_288), (False, True, 458_752), (False, False, 524_288)],
)
def test_what_a_checkpoint_repeats_is_counted_apart(reentrant, early_stop, executed):
    """Two layers are six products. Both counters see all that is executed; only ours sees what the model needs."""
    block = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    x = torch.rand(8, 64, requires_grad=True)

    def step():
        with set_checkpoint_early_stop(early_stop):
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()

    counted = count(step)
    assert counted.model_flops == 6 * PRODUCT == 393_216
    assert counted.flops == torchs(step) == executed
    assert counted.recomputed == executed - 6 * PRODUCT


def test_the_courses_checkpoint_is_seen_as_well():
    from dtcourse.memory.checkpointing import checkpoint as ours

    block = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    x = torch.rand(8, 64, requires_grad=True)
    counted = count(lambda: ours(block, x).sum().backward())
    assert (counted.model_flops, counted.recomputed) == (6 * PRODUCT, PRODUCT)


class LoRA(nn.Module):
    """A frozen layer and a correction of rank r (Hu et al. 2106.09685)."""

    def __init__(self, layer, r):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, r, bias=False)
        self.up = nn.Linear(r, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def test_frozen_weights_cost_four_operations_and_not_six():
    n, d, r = 8, 64, 4
    model = nn.Sequential(*[LoRA(nn.Linear(d, d, bias=False), r) for _ in range(3)])
    x = torch.rand(n, d)

    def step():
        model(x).sum().backward()

    frozen, added = 3 * d * d, 3 * 2 * d * r
    # The input needs no gradient: the first layer has none to compute for it, by either way.
    closed = n * (4 * frozen + 6 * added - 2 * d * d - 2 * d * r)
    assert count(step).model_flops == torchs(step) == closed
    # the rule of thumb, which takes every weight to be trained
    assert flops.six_n(frozen + added) * n > 1.4 * closed


# --- several ranks ------------------------------------------------------------------------------------------------


def pipeline_stage():
    """Two layers of six on rank 0, four on rank 1."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(2 + 2 * rank)])
    stage = PipelineStage(stage, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, t: (y - t).square().sum())
    x = torch.rand(8, 64)
    if rank == 0:
        return lambda: schedule.step(x)
    return lambda: schedule.step(target=x)


def on_a_rank():
    torch.manual_seed(0)
    found = {}
    for name, work in (
        ("tensor", lambda: tensor_parallel_step(torch.rand(8, 64))),
        ("pipeline", pipeline_stage),
    ):
        step = work()
        step()  # the first one learns shapes
        found[name] = count(step).flops, torchs(step)
    return found


def test_each_rank_counts_what_it_runs_itself():
    """torch's counter gives each rank of a tensor-parallel layer the whole layer's operations."""
    first, last = launch(on_a_rank, 2)
    whole = 5 * 2 * 8 * 64 * 128  # the input needs no gradient
    assert [rank["tensor"] for rank in (first, last)] == [(whole // 2, whole)] * 2
    assert first["pipeline"] == ((2 * 3 - 1) * PRODUCT,) * 2
    assert last["pipeline"] == (4 * 3 * PRODUCT,) * 2


# --- what is kept of it -------------------------------------------------------------------------------------------


def test_operators_are_told_apart_by_name_and_shape():
    a, b = torch.ones(4, 8), torch.ones(8, 2)
    with CountOperators(timed=True) as counter:
        a @ b
        a @ b
        b.t() @ a.t()
        a.view(8, 4)
        a + 1
    products = counter.counted.of("aten.mm")
    assert [(one.calls, one.flops, one.shapes) for one in products.operators] == [
        (2, 2 * 128, ((4, 8), (8, 2))),
        (1, 128, ((2, 8), (8, 4))),
    ]
    assert products.operators[0].bytes == 2 * 4 * (32 + 16 + 8)
    assert products.operators[0].intensity == 256 / 448
    assert str(products.operators[0]) == "aten.mm 4x8 8x2"
    assert [one.name for one in counter.counted.operators] == ["aten.mm", "aten.mm", "aten.add"]
    assert all(one.seconds > 0 for one in counter.counted.operators)
    assert sum(one.seconds for one in count(lambda: a @ b).operators) == 0
