"""Autocast by hand: the type of every operation, and gradients bit for bit, as torch.autocast has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.memory import autocast, checkpoint
from dtcourse.memory.autocasting import FLOAT32, FLOAT32_ON_GPU, LOWER, WIDEST, innermost
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory import SavedTensors
from dtcourse.verify import CASES, compare, gradients_of

x = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
classes = torch.arange(4)

# One call for each name of the lists, and some that are in none. h comes in 16 bits and in 32.
CALLS = {
    "linear": lambda h: F.linear(h, x),
    "matmul": lambda h: torch.matmul(h, x) + h.matmul(x),
    "__matmul__": lambda h: h @ x,
    "__rmatmul__": lambda h: h.__rmatmul__(x),
    "mm": lambda h: torch.mm(h, x) + h.mm(x),
    "bmm": lambda h: torch.bmm(h[None], x[None]),
    "addmm": lambda h: torch.addmm(x, h, x),
    "addbmm": lambda h: torch.addbmm(x, h[None], x[None]),
    "baddbmm": lambda h: torch.baddbmm(x[None], h[None], x[None]),
    "conv1d": lambda h: F.conv1d(h[None], x[..., None]),
    "conv2d": lambda h: F.conv2d(h[None, None], x[:1, :1, None, None]),
    "conv3d": lambda h: F.conv3d(h[None, None, None], x[:1, :1, None, None, None]),
    "conv_transpose1d": lambda h: F.conv_transpose1d(h[None], x[..., None]),
    "conv_transpose2d": lambda h: F.conv_transpose2d(h[None, None], x[:1, :1, None, None]),
    "conv_transpose3d": lambda h: F.conv_transpose3d(
        h[None, None, None], x[:1, :1, None, None, None]
    ),
    "scaled_dot_product_attention": lambda h: F.scaled_dot_product_attention(
        h[None], x[None], h[None]
    ),
    "einsum": lambda h: torch.einsum("ij,jk->ik", h, x),
    "mse_loss": lambda h: F.mse_loss(h, h.flip(0)),
    "l1_loss": lambda h: F.l1_loss(h, h.flip(0)),
    "smooth_l1_loss": lambda h: F.smooth_l1_loss(h, h.flip(0)),
    "huber_loss": lambda h: F.huber_loss(h, h.flip(0)),
    "cross_entropy": lambda h: F.cross_entropy(h, classes),
    "nll_loss": lambda h: F.nll_loss(h, classes),
    "kl_div": lambda h: F.kl_div(h, h.flip(0), reduction="sum"),
    "binary_cross_entropy_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, h / 2),
    "poisson_nll_loss": lambda h: F.poisson_nll_loss(h, h),
    "cosine_embedding_loss": lambda h: F.cosine_embedding_loss(h, h.flip(0), torch.ones(4)),
    "hinge_embedding_loss": lambda h: F.hinge_embedding_loss(h, torch.ones(4)),
    "margin_ranking_loss": lambda h: F.margin_ranking_loss(h[0], h[1], torch.ones(4)),
    "triplet_margin_loss": lambda h: F.triplet_margin_loss(h, h.flip(0), h.flip(1)),
    "prod": lambda h: torch.prod(h) + h.prod(),
    "quantile": lambda h: torch.quantile(h, 0.3),
    "cdist": lambda h: torch.cdist(h, h.flip(0)),
    "cat": lambda h: torch.cat([h, x]),
    "concat": lambda h: torch.concat([h, x]),
    "stack": lambda h: torch.stack([h, x], dim=1),
    "hstack": lambda h: torch.hstack([h, x]),
    "vstack": lambda h: torch.vstack([h, x]),
    # On a CPU these take what comes.
    "softmax": lambda h: F.softmax(h, -1) + h.softmax(-1) + torch.softmax(h, -1),
    "log_softmax": lambda h: h.log_softmax(-1),
    "layer_norm": lambda h: F.layer_norm(h, (4,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "softplus": F.softplus,
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda h: h.pow(3),
    "__pow__": lambda h: h**3,
    "sum": lambda h: h.sum(),
    "cumsum": lambda h: h.cumsum(0),
    "cumprod": lambda h: h.cumprod(0),
    "norm": lambda h: h.norm(),
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "gelu": F.gelu,
    "+": lambda h: h + x,
    "cat of one type": lambda h: torch.cat([h, h]),
}


def test_every_name_of_the_lists_is_tried():
    assert CALLS.keys() >= LOWER | FLOAT32 | FLOAT32_ON_GPU | WIDEST


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_types_are_pytorchs(name, dtype):
    for h in (x, x.to(dtype), x.double()):
        if h.dtype == torch.float64 and name not in ("mse_loss", "sum"):
            continue  # float64 stays as it is, and does not go with x
        with torch.autocast("cpu", dtype=dtype):
            theirs = CALLS[name](h)
        with autocast(dtype, gpu=False):
            mine = CALLS[name](h)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def gradients(context, model, loss):
    model.zero_grad()
    torch.manual_seed(0)
    with context:
        value = loss(model)
    value.backward()
    return {**gradients_of(model), "loss": value.detach()}


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(144, 3),
    )


def transformer():
    torch.manual_seed(0)
    return Transformer(
        TransformerConfig(vocab=17, d_model=16, n_layers=2, n_heads=2, max_length=12)
    )


tokens_BS = torch.randint(17, (2, 12), generator=torch.Generator().manual_seed(1))
MODELS = {
    "mlp": (lambda: CASES["mlp"].build(0), lambda m: F.cross_entropy(*_mlp(m))),
    "tied": (lambda: CASES["tied"].build(0), lambda m: CASES["tied"].loss(m(tokens_BS % 11), tokens_BS % 11)),
    "frozen": (lambda: CASES["frozen"].build(0), lambda m: F.cross_entropy(*_mlp(m))),
    "convnet": (convnet, lambda m: m(torch.ones(2, 1, 8, 8).cumsum(-1)).square().sum()),
    "transformer": (
        transformer,
        lambda m: F.cross_entropy(m(tokens_BS).flatten(0, 1), tokens_BS.flatten()),
    ),
}  # fmt: skip


def _mlp(model):
    inputs, targets = CASES["mlp"].batch(8, 0)
    return model(inputs), targets


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_pytorchs_bit_for_bit(name):
    build, loss = MODELS[name]
    mine = gradients(autocast(torch.bfloat16, gpu=False), build(), loss)
    theirs = gradients(torch.autocast("cpu", dtype=torch.bfloat16), build(), loss)
    compare(mine, theirs, tolerance=0.0)
    assert {g.dtype for n, g in mine.items() if n != "loss" and g is not None} == {torch.float32}


def test_what_is_saved_is_as_small_as_pytorchs():
    """A weight used three times has one copy; activations between matrix products have half the bytes."""
    torch.manual_seed(0)
    shared = nn.Linear(32, 32)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), shared)
    batch = torch.randn(8, 32)
    kept = []
    for context in (
        autocast(torch.bfloat16, gpu=False),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autocast("cpu", enabled=False),
    ):
        with SavedTensors(model, [batch]) as saved, context:
            model(batch).sum()
        kept.append(saved.bytes)
    activations, copies = (
        4 * 8 * 32,
        32 * 32 + 8 * 32,
    )  # 16-bit numbers: two of ReLU's; the weight's, the batch's
    assert kept[0] == kept[1] == 2 * (activations // 2 + copies)
    assert kept[2] == 4 * 2 * 8 * 32


def test_nested_and_switched_off():
    with autocast(torch.bfloat16, gpu=False):
        assert (x @ x).dtype == torch.bfloat16
        with autocast(enabled=False):
            assert (x @ x).dtype == torch.float32
        with autocast(torch.float16, gpu=False):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32 and innermost() is None


def test_a_copy_made_without_gradients_is_not_used_with_them():
    layer = nn.Linear(4, 4)
    with autocast(gpu=False):
        with torch.no_grad():
            layer(x)
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_the_copy_ends_with_the_context():
    layer = nn.Linear(4, 4, bias=False)
    context = autocast(gpu=False)
    with context:
        before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    with context:
        assert torch.equal(layer(x), 2 * before)


def test_a_recompute_runs_under_the_autocast_of_forward():
    build, loss = MODELS["mlp"]
    truth = gradients(autocast(gpu=False), build(), loss)
    model, (inputs, targets) = build(), CASES["mlp"].batch(8, 0)
    with autocast(gpu=False):
        loss = F.cross_entropy(checkpoint(model, inputs), targets)
    loss.backward()
    compare(gradients_of(model), {n: truth[n] for n in gradients_of(model)}, tolerance=0.0)
    model.zero_grad()
    full = checkpoint(model, inputs).square().sum()
    with autocast(gpu=False):
        full.backward()  # forward was without it
    assert model[0].weight.grad.dtype == torch.float32


def test_the_list_of_a_gpu_casts_up():
    h = x.bfloat16()
    for name in FLOAT32_ON_GPU:
        with autocast(gpu=True):
            assert CALLS[name](h).dtype == torch.float32, name
    assert F.softmax(h, -1).dtype == torch.bfloat16


def test_how_each_operation_wants_its_inputs():
    low, high = autocast(gpu=False), autocast(gpu=True)
    cast = low.cast_for("linear", (x,))
    assert cast is not None and cast(x).dtype == torch.bfloat16
    assert low.cast_for("cross_entropy", (x,)) is torch.Tensor.float
    assert low.cast_for("relu", (x,)) is None
    assert low.cast_for("softmax", (x,)) is None
    assert high.cast_for("softmax", (x,)) is torch.Tensor.float
    assert low.cast_for("cat", ([x, x.bfloat16()],)) is torch.Tensor.float
    assert low.cast_for("cat", ([x.bfloat16()],)) is None


def test_types_that_are_not_lower():
    with pytest.raises(ValueError, match=r"torch.bfloat16 or torch.float16; got torch.float64"):
        autocast(torch.float64)


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_a_gpu_values_and_types_are_pytorchs(monkeypatch):
    monkeypatch.setitem(globals(), "x", x.cuda())
    monkeypatch.setitem(globals(), "classes", classes.cuda())
    for name, call in CALLS.items():
        for h in (x, x.half()):
            with torch.autocast("cuda", dtype=torch.float16), torch.device("cuda"):
                theirs = call(h)
            with autocast(torch.float16, gpu=True), torch.device("cuda"):
                mine = call(h)
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
