"""Predictions of memory, held against measured steps, the ZeRO paper's table and each other."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtcourse import device
from dtcourse.models import (
    MLP,
    PUBLISHED,
    ConvNet,
    FusedCausalAttention,
    Transformer,
    TransformerConfig,
    transformer_parameters,
)
from dtcourse.profiling.memory import held
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.simulator import activations
from dtcourse.simulator.hardware import published
from dtcourse.simulator.memory import (
    OPTIMIZERS,
    PRECISIONS,
    device_memory,
    largest_batch,
    model_states,
    optimizer_bytes,
    plan,
)
from dtcourse.simulator.tracing import trace

SHAPES = {
    "plain": {},
    "grouped heads": {"n_kv_heads": 2},
    "dropout": {"dropout": 0.1},
    "small vocabulary": {"vocab": 8},
    "deep": {"n_layers": 5},
    "untied, no biases": {"tied": False, "bias": False, "d_ff": 48},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from two, and on a busy machine wait for the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Checkpointed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args):
        return checkpoint(self.module, *args, use_reentrant=False)


def config(**changes) -> TransformerConfig:
    return TransformerConfig(
        **({"vocab": 96, "d_model": 32, "n_layers": 2, "max_length": 64} | changes)
    )


def build(shape, precision="fp32", attention="plain", checkpointing="none", on="cpu"):
    model = Transformer(shape)
    for block in model.blocks:
        if attention == "efficient":
            block.attention.core = FusedCausalAttention()
        if checkpointing == "selective":
            block.attention.core = Checkpointed(block.attention.core)
    if checkpointing == "full":
        model.blocks = nn.ModuleList(map(Checkpointed, model.blocks))
    half = precision in ("bf16 only", "bf16 + master")
    return model.to(on, torch.bfloat16 if half else torch.float32)


def measure(shape, batch, sequence, *, on="cpu", **options) -> MemoryTracker:
    """A step with gradients already there, as in the second micro-batch of an accumulation."""
    model = build(shape, on=on, **options)
    x, y = torch.randint(0, shape.vocab, (2, batch, sequence), device=on).unbind()
    x, y = x.clone(), y.clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    autocast = contextlib.nullcontext()
    if options.get("precision") == "bf16 autocast":
        autocast = torch.autocast(torch.device(on).type, torch.bfloat16)
    with MemoryTracker(model, inputs=[x, y]) as tracker:
        with autocast:
            loss = model.loss(x, y)
        loss.backward()
    return tracker


# Model states


def test_states_are_table_1_of_the_zero_paper():
    """All 54 cells. The paper cuts some off instead of rounding them, hence within one of the last digit."""
    stages = {1: "P_os", 2: "P_os_g", 3: "P_os_g_p"}
    checked = 0
    for row in published("zero_1910.02054")["table1"]:
        for stage, column in stages.items():
            states = model_states(
                int(row["params_B"] * 1e9), precision="fp16 + master", optimizer="adam",
                stage=stage, ranks=row["dp"],
            )  # fmt: skip
            printed = row[column]
            last_digit = 10.0 ** -len(printed.partition(".")[2])
            assert abs(sum(states.values()) / 1e9 - float(printed)) <= last_digit, (row, stage)
            checked += 1
    assert checked == 54


@pytest.mark.needs("shared")
def test_the_packaged_table_is_the_shared_one(root):
    shared = root.parent / "shared" / "published" / "zero_1910.02054.json"
    assert published("zero_1910.02054") == json.loads(shared.read_text())


def test_sixteen_bytes_a_parameter():
    assert sum(model_states(10, precision="bf16 + master").values()) == 160
    assert sum(model_states(10, precision="fp32").values()) == 160
    assert optimizer_bytes("fp16 + master", "adam") == 12


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_states_equal_those_of_a_real_optimizer(precision, optimizer):
    model = build(config(n_layers=1), precision)
    if precision == "fp16 + master":
        model = model.half()
    parameters = list(model.parameters())
    master = PRECISIONS[precision].master > 0
    updated = [p.detach().float().requires_grad_() for p in parameters] if master else parameters
    make = {
        "sgd": lambda p: torch.optim.SGD(p),
        "momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p),
    }
    chosen = make[optimizer](updated)
    for p, u in zip(parameters, updated, strict=True):
        p.grad = torch.zeros_like(p)
        u.grad = torch.zeros_like(u)
    chosen.step()
    if master:
        chosen.zero_grad()  # float32 gradients of the master weights live in the step alone
    measured = held(model, chosen)
    predicted = model_states(
        transformer_parameters(model.config), precision=precision, optimizer=optimizer
    )
    steps = 4 * len(parameters) if optimizer == "adam" else 0
    assert measured.pop("buffers") == 0
    assert measured == predicted | {"optimizer states": predicted["optimizer states"] + steps}
    assert steps < 0.02 * sum(measured.values())


@given(st.integers(1, 10**12), st.integers(1, 5000), st.sampled_from(list(PRECISIONS)))
@settings(max_examples=50)
def test_shards_cover_the_states_and_waste_less_than_an_element_a_rank(psi, ranks, precision):
    whole = sum(model_states(psi, precision=precision).values())
    by_stage = [
        sum(model_states(psi, precision=precision, stage=s, ranks=ranks).values()) for s in range(4)
    ]
    assert by_stage[0] == whole
    assert by_stage == sorted(by_stage, reverse=True)
    each = whole // psi  # bytes a parameter
    assert whole <= by_stage[3] * ranks < whole + each * ranks


def test_frozen_parameters_have_no_gradient_and_no_state():
    lora = model_states(1000, precision="bf16 + master", trainable=10)
    assert lora == {"parameters": 2000, "gradients": 20, "optimizer states": 120}


# Activations


@pytest.mark.parametrize("attention", activations.ATTENTION)
@pytest.mark.parametrize("checkpointing", activations.CHECKPOINTING)
@pytest.mark.parametrize("precision", ["fp32", "bf16 only", "bf16 autocast"])
def test_activations_to_the_byte_and_the_peak_within_a_tenth(precision, checkpointing, attention):
    options = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
    for name, changes in SHAPES.items():
        shape = config(**changes)
        for batch, sequence in ((2, 32), (1, 64)):
            measured = measure(shape, batch, sequence, **options)
            predicted = plan(
                transformer_parameters(shape), shape, optimizer="sgd", batch=batch,
                sequence=sequence, on="cpu", **options,
            )  # fmt: skip
            where = (name, batch, sequence)
            assert predicted.bytes["activations"] == measured.activation_bytes, where
            assert predicted.total == pytest.approx(measured.peak.bytes, rel=0.1), where


def test_rows_are_korthikantis_count():
    """2205.05198, equation 1 without dropout: (32 + 2 a s / h) s b h bytes in 16 bits; 34 and 5 with its masks."""
    b, s, h, a = 3, 64, 128, 4
    shape = config(d_model=h, n_heads=a)
    rows = activations.block(shape, b, s, precision="bf16 only")
    small = [k for k in rows if ("norm" in k.name and "mean" in k.name) or "mask" in k.name]
    assert (
        sum(k.bytes for k in rows) - sum(k.bytes for k in small)
        == 32 * s * b * h + 2 * a * s * s * b
    )
    recomputed = activations.block(shape, b, s, precision="bf16 only", checkpointing="full")
    assert sum(k.bytes for k in recomputed) == 2 * s * b * h


def test_a_gpt2_xl_by_formula_and_by_tracing_are_the_same_bytes():
    """1.56 billion parameters, on a machine that could not hold them."""
    shape = PUBLISHED["GPT-2 XL"]

    def batch():
        return torch.zeros(2, 1, 256, dtype=torch.int64).unbind()

    traced = trace(lambda: Transformer(shape), Transformer.loss, batch)
    predicted = plan(transformer_parameters(shape), shape, optimizer="sgd", sequence=256, on="cpu")
    assert traced.peak.by_category["parameters"] == predicted.bytes["parameters"]
    assert traced.activation_bytes == predicted.bytes["activations"]


# Any module


@pytest.mark.parametrize(
    ("build_model", "shape"),
    [
        (lambda: MLP((64, 256, 10), dropout=0.2), (32, 64)),
        (lambda: ConvNet(), (16, 1, 8, 8)),
    ],
    ids=["MLP", "ConvNet"],
)
def test_a_traced_step_is_the_measured_one(build_model, shape):
    def inputs():
        return torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)

    def loss(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    traced = trace(build_model, loss, inputs, optimizer=torch.optim.Adam, steps=2)
    model, (x, y) = build_model(), inputs()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.zero_grad()
        with MemoryTracker(model, optimizer, [x, y]) as measured:
            loss(model, x, y).backward()
            optimizer.step()
    for category, predicted in traced.peak.by_category.items():
        found = measured.peak.by_category[category]
        slack = 0.10 if category in ("activations", "other") else 0.02
        assert predicted == pytest.approx(found, rel=slack, abs=1024), category
    assert traced.activation_bytes == pytest.approx(measured.activation_bytes, rel=0.10)


def test_a_step_that_depends_on_values_is_explained():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(ValueError, match="depends on the values"):
        trace(lambda: Branching(4, 4), lambda m, x: m(x).sum(), lambda: [torch.ones(2, 4)])


# The planner


def test_a_plan_says_whether_it_fits():
    shape = PUBLISHED["GPT-2 XL"]
    psi = transformer_parameters(shape)
    tight = plan(psi, shape, precision="bf16 + master", batch=4, capacity=32e9)
    assert not tight.fits
    assert "does not fit" in str(tight)
    assert tight.spare == 32e9 - tight.total < 0
    sharded = plan(
        psi, shape, precision="bf16 + master", batch=4, stage=2, ranks=8, capacity=32e9,
        attention="efficient",
    )  # fmt: skip
    assert sharded.fits
    assert sharded.states == sum(
        model_states(psi, precision="bf16 + master", stage=2, ranks=8).values()
    )
    with pytest.raises(ValueError, match="without a capacity"):
        _ = plan(psi).spare


@pytest.mark.parametrize("capacity", [5e9, 8e9, 9.5e9, 16e9, 31e9, 80e9])
def test_the_largest_batch_fits_and_the_next_does_not(capacity):
    shape, psi = PUBLISHED["GPT-2 small"], transformer_parameters(PUBLISHED["GPT-2 small"])
    most = largest_batch(capacity, psi, shape, sequence=1024)
    assert plan(psi, shape, batch=most, capacity=capacity).fits
    assert not plan(psi, shape, batch=most + 1, capacity=capacity).fits
    assert largest_batch(1e9, psi, shape) == 0


def test_devices_have_the_bytes_that_are_reported_of_them_else_their_makers():
    assert device_memory()["H100 SXM, 80 GB"] == 81_559 * 2**20
    assert device_memory()["A100 SXM, 80 GB"] == 80 * 2**30
    assert device_memory()["H200, 141 GB"] == 141e9
    # No more than the makers' figure in GiB, no less than in GB.
    for name, size in device_memory().items():
        figure = float(name.split()[-2])
        assert figure * 1e9 <= size <= figure * 2**30


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "fp8"}, "no precision 'fp8'"),
        ({"optimizer": "lion"}, "no optimizer 'lion'"),
        ({"stage": 4}, "got 4"),
        ({"ranks": 0}, "ranks is at least 1"),
        ({"batch": 0}, "batch is at least 1"),
        ({"attention": "flash"}, "got 'flash'"),
        ({"checkpointing": "some"}, "got 'some'"),
        ({"trainable": 10**12}, "trainable between 0"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        plan(1000, config(), **wrong)


def test_shapes_without_a_formula_are_refused():
    for options in ({"norm": "rms"}, {"mlp": "swiglu"}, {"positions": "rotary"}, {"experts": 4}):
        with pytest.raises(ValueError, match="have no formula here"):
            plan(1000, TransformerConfig(**options))


@pytest.mark.gpu
@pytest.mark.parametrize("attention", activations.ATTENTION)
@pytest.mark.parametrize("checkpointing", activations.CHECKPOINTING)
@pytest.mark.parametrize("precision", ["fp32", "bf16 only", "bf16 autocast"])
def test_on_a_gpu_activations_and_the_allocators_peak(
    precision, checkpointing, attention, record_property
):
    on = device.for_rank(0)
    shape = config(d_model=256, n_layers=4, vocab=1024, max_length=512)
    options = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
    measure(shape, 4, 512, on=on, **options)  # workspaces
    device.synchronize(on)
    before = device.memory_allocated(on)
    device.reset_peak_memory(on)
    measured = measure(shape, 4, 512, on=on, **options)
    device.synchronize(on)
    predicted = plan(
        transformer_parameters(shape), shape, optimizer="sgd", batch=4, sequence=512, on=str(on),
        **options,
    )  # fmt: skip
    peak = device.peak_memory(on) - before
    record_property("predicted peak", predicted.total)
    record_property("allocator's peak", peak)
    record_property("predicted activations", predicted.bytes["activations"])
    record_property("measured activations", measured.activation_bytes)
    assert predicted.bytes["activations"] == pytest.approx(measured.activation_bytes, rel=0.1)
    assert predicted.total == pytest.approx(peak, rel=0.1)
