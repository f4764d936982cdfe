"""Parameters that visit the device: the same training, two units at a time, fetched ahead."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dtcourse import device, events
from dtcourse.memory import OffloadedParameters, checkpoint
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.verify import CASES, compare

WIDTH, LAYERS = 64, 8
UNIT = (WIDTH * WIDTH + WIDTH) * 4  # bytes of one layer's parameters


def stack():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))
    )


def transformer():
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocab=17, d_model=16, n_layers=3, n_heads=2, max_length=8))


def frozen_first():
    """A unit whose first layer is frozen: its weight is needed after the unit's last parameter gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)), nn.Linear(5, 3)
    )
    model[1][0].requires_grad_(False)
    return model


class Twice(nn.Module):
    """Calls its unit two times, and leaves one unit out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.again, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.again(self.again(self.first(x)).tanh()))


class Recomputed(nn.Module):
    """Runs its units' forward again in backward, when they have been fetched for backward already."""

    def __init__(self, call):
        super().__init__()
        self.layers, self.call = CASES["mlp"].build(0), call

    def forward(self, x):
        for layer in self.layers:
            x = self.call(layer, x)
        return x


@dataclass
class Answer:
    y: torch.Tensor


class Answers(nn.Module):
    """Its units return objects, which torch's pytrees do not open."""

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return Answer(torch.tanh(self.layer(x)))

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.units, self.last = nn.ModuleList(self.Unit() for _ in range(3)), nn.Linear(6, 3)

    def forward(self, x):
        for unit in self.units:
            x = unit(x).y
        return self.last(x)


tokens_BS = torch.randint(17, (2, 8), generator=torch.Generator().manual_seed(0))
CASES_HERE = {
    "mlp": (lambda: CASES["mlp"].build(0), lambda m: m, lambda m: _loss(m)),
    "frozen": (lambda: CASES["frozen"].build(0), lambda m: m, lambda m: _loss(m)),
    "frozen first": (frozen_first, lambda m: m, lambda m: _loss(m)),
    "twice": (Twice, lambda m: m.children(), lambda m: _loss(m)),
    "recomputed": (lambda: Recomputed(checkpoint), lambda m: m.layers, lambda m: _loss(m)),
    "recomputed by PyTorch": (
        lambda: Recomputed(partial(torch_checkpoint, use_reentrant=False)),
        lambda m: m.layers,
        lambda m: _loss(m),
    ),
    "objects": (Answers, lambda m: m.units, lambda m: _loss(m)),
    "transformer": (transformer, lambda m: m.blocks, lambda m: m(tokens_BS).square().mean()),
}


def _loss(model, step=0):
    inputs, targets = CASES["mlp"].batch(8, step)
    return CASES["mlp"].loss(model(inputs), targets)


def train(build, units, loss, offload, steps=3, micro_batches=2):
    model = build()
    offloaded = OffloadedParameters(model, units(model)) if offload else None
    parameters = list(offloaded.parameters() if offload else model.parameters())
    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], lr=0.01)
    gradients = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss(model).backward()
        gradients.append(
            {str(i): None if p.grad is None else p.grad.clone() for i, p in enumerate(parameters)}
        )
        optimizer.step()
    with torch.no_grad():
        final = loss(model)
    return gradients, final, {n: v.clone() for n, v in model.state_dict().items()}


@pytest.mark.parametrize("name", CASES_HERE)
def test_training_is_the_same_bit_for_bit(name):
    mine, theirs = train(*CASES_HERE[name], True), train(*CASES_HERE[name], False)
    for got, expected in zip(mine[0], theirs[0], strict=True):
        compare(got, expected, tolerance=0.0)
    assert torch.equal(mine[1], theirs[1])
    compare(mine[2], theirs[2], tolerance=0.0, what="state")


def test_at_most_two_units_are_on_the_device():
    """Forward, and backward with two units' gradients; in between not one."""
    model = stack()
    offloaded = OffloadedParameters(model)
    counts = []
    for unit in model:
        unit.register_forward_hook(lambda *_: counts.append(on_device(model)), always_call=True)
        unit[0].weight.register_post_accumulate_grad_hook(lambda _: counts.append(on_device(model)))
    loss = model(torch.ones(4, WIDTH)).sum()
    assert on_device(model) == 0
    loss.backward()
    assert len(counts) == 2 * LAYERS and max(counts) <= 2 * UNIT and on_device(model) == 0
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in offloaded.parameters())


def on_device(model):
    return sum(p.untyped_storage().nbytes() for p in model.parameters())


def test_peak_memory_without_gradients():
    """Inference of a model of eight layers: two of them live, as the tracker sees it."""
    model, x = stack(), torch.ones(4, WIDTH)
    expected = model(x)
    OffloadedParameters(model)
    with torch.no_grad(), MemoryTracker() as tracker:
        got = model(x)
    assert torch.equal(got, expected)
    mapped = LAYERS * UNIT  # the host's copies, which the tracker meets when they are read
    activations = 4 * got.nbytes
    assert tracker.peak.bytes <= mapped + 2 * UNIT + activations


def test_the_next_unit_comes_while_this_one_computes(monkeypatch):
    log = []

    class Logged(device.SideStream):
        def run(self, work, uses=(), finished=None):
            log.append("copy")
            return super().run(work, uses, finished)

    monkeypatch.setattr(device, "SideStream", Logged)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    OffloadedParameters(model)
    for number, layer in enumerate(model):
        layer.register_forward_pre_hook(lambda *_, number=number: log.append(number))
        layer.weight.register_hook(lambda _, number=number: log.append(f"backward {number}"))
    y = model(torch.ones(1, 4))
    assert log == ["copy", "copy", 0, "copy", 1, 2]
    log.clear()
    y.sum().backward()
    # After each backward a gradient's copy out; before each the next unit's weights are on their way.
    assert log == [
        "copy", "copy", "backward 2", "copy", "copy", "backward 1", "copy", "backward 0", "copy"
    ]  # fmt: skip


def test_events():
    model = stack()
    OffloadedParameters(model)
    events.start_recording(0)
    try:
        model(torch.ones(4, WIDTH)).sum().backward()
    finally:
        seen = events.Timeline(events.stop_recording())
    fetched = [e.detail["number"] for e in seen.of(name="fetch", kind="memory")]
    forward = list(range(LAYERS))
    assert fetched == forward + forward[::-1]
    assert sum(e.bytes for e in seen.of(name="offload")) == LAYERS * UNIT, "each gradient out, once"


def test_state_dicts():
    model, plain = stack(), stack()
    offloaded = OffloadedParameters(model)
    compare(dict(model.state_dict()), dict(plain.state_dict()), tolerance=0.0, what="state")
    other = {n: v + 1 for n, v in plain.state_dict().items()}
    offloaded.load_state_dict(other)
    compare(dict(model.state_dict()), other, tolerance=0.0, what="state")
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(torch.ones(1, WIDTH)), plain(torch.ones(1, WIDTH)))
    before = copy.deepcopy(model.state_dict())
    damaged = {
        n: v[:1] if n == "3.0.weight" else v * 0 for n, v in other.items() if n != "0.0.bias"
    }
    with pytest.raises(ValueError, match=r"does not fit: 0.0.bias, 3.0.weight"):
        offloaded.load_state_dict(damaged)
    compare(dict(model.state_dict()), before, tolerance=0.0, what="state")


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_a_step_between_forward_and_backward():
    model = stack()
    optimizer = torch.optim.SGD(OffloadedParameters(model).parameters(), lr=0.1)
    model(torch.ones(1, WIDTH)).sum().backward()
    late = model(torch.ones(1, WIDTH)).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="unit 7 have been changed between its forward and this"):
        late.backward()


def test_weights_that_are_away_are_an_error_to_use():
    model = stack()
    OffloadedParameters(model)
    with pytest.raises(RuntimeError):
        model[0][0].weight @ torch.ones(WIDTH)


def test_a_unit_that_fails_leaves():
    model = stack()
    OffloadedParameters(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(1, 3))
    assert on_device(model) <= UNIT, "only what was on its way"
    assert model(torch.ones(1, WIDTH)).shape == (1, WIDTH)


def test_units_that_make_no_sense():
    model = CASES["tied"].build(0)
    with pytest.raises(ValueError, match="two units share a parameter"):
        OffloadedParameters(model)
    with pytest.raises(ValueError, match="two units share a parameter"):
        OffloadedParameters(net := stack(), [net[0], net[0][0]])
    with pytest.raises(ValueError, match="none of the units has a parameter"):
        OffloadedParameters(nn.Sequential(nn.Tanh()))


def test_no_room_for_the_file(monkeypatch):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=rf"{LAYERS * UNIT} bytes of parameters do not fit"):
        OffloadedParameters(stack())


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_a_gpu():
    where = torch.device("cuda")
    x = torch.ones(4, WIDTH, device=where)
    plain, model = stack().to(where), stack().to(where)
    offloaded = OffloadedParameters(model)
    plain(x).sum().backward()
    model(x).sum().backward()
    for got, expected in zip(offloaded.parameters(), plain.parameters(), strict=True):
        assert got.device.type == "cpu" and got.is_pinned()
        assert torch.equal(got.grad, expected.grad.cpu())
