"""The whole model's names, state, gradients and norm, of a pipeline: each parameter is on its owner."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import traffic
from dtcourse.launch import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.clipping import clip_grad_norm, grad_norm
from dtcourse.parameters.naming import entries
from dtcourse.parameters.whole import full_gradients, full_state_dict, load_full_state_dict
from dtcourse.pipeline_parallel import (
    Pipeline,
    interleaved_1f1b,
    layers_of,
    one_f_one_b,
    shared_parameters,
    split,
    zb_v,
)
from dtcourse.verify import compare, gradients_of

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/pipeline_parallel/")

CONFIG = TransformerConfig(vocab=11, d_model=8, n_layers=2, n_heads=2, max_length=6)
SCHEDULES = {
    "1F1B": one_f_one_b(2, 2),
    "interleaved": interleaved_1f1b(2, 2, 2),
    "ZB-V": zb_v(2, 2),  # the tied weight is on one rank
}


def model(seed=0):
    return Transformer(CONFIG, seed=seed).double()


def tokens():
    return torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def pipelined(name, seed=0, shared=False):
    schedule, layers = SCHEDULES[name], layers_of(model(seed))
    per_stage = len(layers) // schedule.num_stages
    ranges = [range(i, i + per_stage) for i in range(0, len(layers), per_stage)]
    stages = split(layers, ranges, schedule, dist.get_rank())
    told = shared_parameters(layers, ranges, schedule) if shared else None
    return Pipeline(stages, schedule, loss, shared=told)


def all_of_it(name, shared):
    pipeline = pipelined(name, shared=shared)
    pipeline.step(tokens(), tokens().flip(1))
    names = [entry.names for entry in entries(pipeline.module)]
    whole = full_state_dict(pipeline.module), full_gradients(pipeline.module)
    norms = [grad_norm(pipeline.module, kind).item() for kind in (1.0, 2.0, math.inf)]
    first = full_state_dict(pipeline.module, only_first=True)
    clip_grad_norm(pipeline.module, 0.01)
    assert list(first) == (list(whole[0]) if dist.get_rank() == 0 else [])
    return names, whole, norms, grad_norm(pipeline.module).item()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("shared", [False, True], ids=["found", "told"])
def test_names_states_gradients_and_norms_are_the_whole_models(name, shared):
    plain = model()
    plain.loss(tokens(), tokens().flip(1)).backward()
    grads = [p.grad for p in plain.parameters()]
    ranks = launch(all_of_it, 2, name, shared)
    held = [{name for of_one in names for name in of_one} for names, *_ in ranks]
    assert held[0] | held[1] == plain.state_dict().keys()
    assert not held[0] & held[1]
    for _, (state, gradients), norms, clipped in ranks:
        compare(state, plain.state_dict(), 0.0, "value")
        compare(gradients, gradients_of(plain), 1e-12, "gradient", norm=2)
        right = [nn.utils.get_total_norm(grads, kind).item() for kind in (1.0, 2.0, math.inf)]
        assert norms == pytest.approx(right, rel=1e-12)
        assert clipped == pytest.approx(0.01, rel=1e-4)
        plain.load_state_dict(state)


def test_layers_that_are_found_and_layers_of_a_sequence_keep_their_names():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.parts = nn.Linear(2, 3), nn.ModuleDict({"last": nn.Linear(3, 1)})

        def forward(self, x):
            return self.parts["last"](self.first(x).relu())

    named = nn.Sequential()
    named.add_module("in", nn.Linear(2, 3))
    named.add_module("out", nn.Linear(3, 1))
    schedule = one_f_one_b(2, 1)
    for whole in (Plain(), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), named):
        for layers in (layers_of(whole), whole if isinstance(whole, nn.Sequential) else None):
            if layers is None:
                continue
            stages = [split(layers, [range(1), range(1, 2)], schedule, r)[0] for r in range(2)]
            found = [name for stage in stages for entry in entries(stage) for name in entry.names]
            assert found == list(whole.state_dict())


class Counts(nn.Module):
    """No parameters: a buffer, and more."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x * 2

    def get_extra_state(self):
        return {"seen": int(self.seen)}

    def set_extra_state(self, state):
        self.loaded = state


def without_parameters():
    """Stages of one's own, one of which trains nothing."""
    torch.manual_seed(dist.get_rank())
    stage = Counts() if dist.get_rank() == 1 else nn.Linear(2, 2)
    pipeline = Pipeline([stage], one_f_one_b(3, 2), nn.functional.mse_loss)
    x = torch.ones(4, 2)
    pipeline.step(x, x)
    state = full_state_dict(pipeline.module)
    norm = grad_norm(pipeline.module).item()
    with traffic.phase("norm"):
        grad_norm(pipeline.module)
    load_full_state_dict(pipeline.module, state)
    return norm, state, full_gradients(pipeline.module)


def test_a_rank_without_parameters_takes_part():
    run = launch(without_parameters, 3, backend="ring", record=True)
    for norm, state, gradients in run:
        names = ["0.weight", "0.bias", "1.seen", "1._extra_state", "2.weight", "2.bias"]
        assert list(state) == names
        assert state["1.seen"] == state["1._extra_state"]["seen"] == 2
        right = torch.stack([g.norm() for g in gradients.values()]).norm().item()
        assert norm == pytest.approx(right, rel=1e-6)
    one_number = 2 * (3 - 1) * 8  # an all-reduce on a ring
    assert run.traffic.bytes_sent(phase="norm") == one_number


# --- loaded, and refused --------------------------------------------------------------------------------------------


def both_ways(state):
    pipeline = pipelined("1F1B", seed=3)
    load_full_state_dict(pipeline.module, state)
    return full_state_dict(pipeline.module)


def test_a_plain_models_state_is_loaded():
    state = model(1).state_dict()
    for found in launch(both_ways, 2, state):
        compare(found, state, 0.0, "value")


def refused(state):
    pipeline = pipelined("1F1B", seed=3)
    before = full_state_dict(pipeline.module)
    with pytest.raises(ValueError) as caught:
        load_full_state_dict(pipeline.module, state)
    compare(full_state_dict(pipeline.module), before, 0.0, "value")
    return str(caught.value)


def without(name):
    return {n: t for n, t in model().state_dict().items() if n != name}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (without("norm.weight"), "missing norm.weight"),
        (without("position_embedding.weight"), "missing position_embedding.weight"),
        (without("") | {"more": torch.ones(1)}, "unexpected more"),
        (without("") | {"norm.bias": torch.ones(1)}, r"norm.bias is \[8\] in the model and \[1\]"),
        (without("") | {"output.weight": torch.ones(11, 8).double()}, "are one parameter here, and differ"),
    ],
)  # fmt: skip
def test_another_models_state_is_refused_on_every_rank(state, words):
    for said in launch(refused, 2, state):
        assert re.search(words, said), said


def in_two_stages():
    layer = nn.Linear(2, 2)
    layers = layers_of(nn.Sequential(layer, layer))
    stages = split(layers, [range(1), range(1, 2)], one_f_one_b(2, 1), dist.get_rank())
    pipeline = Pipeline(stages, one_f_one_b(2, 1), nn.functional.mse_loss)
    with pytest.raises(ValueError, match=r"ranks 0 and 1 of the group both have a 1.weight"):
        full_state_dict(pipeline.module)


def test_a_module_in_two_stages_has_no_name_of_its_own():
    launch(in_two_stages, 2)
