"""The models: seeded, of the shapes they say, and polite about mistakes."""

import subprocess
import sys

import pytest
import torch

from dtcourse.models import (
    MLP,
    ConvNet,
    FusedCausalAttention,
    Rotary,
    Transformer,
    TransformerConfig,
    seeded,
)

LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False}
SMALL = TransformerConfig(vocab=31, d_model=16, n_layers=2, n_heads=4, max_length=12)
BUILD = {
    "MLP": lambda seed: MLP((64, 32, 10), seed=seed),
    "ConvNet": lambda seed: ConvNet(seed=seed),
    "Transformer": lambda seed: Transformer(SMALL, seed=seed),
}


@pytest.mark.parametrize("name", BUILD)
def test_same_seed_same_weights_and_the_callers_random_state_is_untouched(name) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = BUILD[name](7).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    b, c = BUILD[name](7).state_dict(), BUILD[name](8).state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


def test_seeded_refuses_what_is_not_a_seed() -> None:
    with pytest.raises(ValueError, match="None"):
        with seeded(None):
            pass


def test_mlp_takes_flat_and_image_shaped_input() -> None:
    model, x = MLP((64, 32, 10), dropout=0.5).eval(), torch.randn(3, 1, 8, 8)
    assert torch.equal(model(x), model(x.flatten(1)))
    assert model(x).shape == (3, 10)
    assert model.loss(x, torch.tensor([0, 1, 2])).shape == ()


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("channels", [(4,), (4, 8), (4, 8, 8)])
def test_convnet_shapes(channels, batch_norm) -> None:
    model = ConvNet(channels, batch_norm=batch_norm)
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 10)
    assert bool(list(model.buffers())) == batch_norm


def test_convnet_without_batch_norm_treats_each_sample_alone() -> None:
    model, x = ConvNet(batch_norm=False), torch.randn(6, 1, 8, 8)
    torch.testing.assert_close(model(x), torch.cat([model(x[:2]), model(x[2:])]))


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [{}, LLAMA])
def test_transformer_is_causal(kv_heads, tied, options) -> None:
    config = TransformerConfig(
        31, 16, 2, 4, n_kv_heads=kv_heads, tied=tied, max_length=12, **options
    )
    model = Transformer(config).double()
    tokens = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 7] = (tokens[:, 7] + 1) % 31
    a, b = model(tokens), model(changed)
    assert a.shape == (2, 12, 31)
    torch.testing.assert_close(a[:, :7], b[:, :7], rtol=0, atol=0)
    assert (a[:, 7:] - b[:, 7:]).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_fused_attention_gives_the_same_gradients(kv_heads) -> None:
    config = TransformerConfig(31, 16, 2, 4, n_kv_heads=kv_heads, max_length=12)
    plain, fused = Transformer(config).double(), Transformer(config).double()
    for block in fused.blocks:
        block.attention.core = FusedCausalAttention()
    assert plain.state_dict().keys() == fused.state_dict().keys()
    tokens = torch.randint(31, (2, 13), generator=torch.Generator().manual_seed(0))
    for model in (plain, fused):
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    for (name, p), q in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_grouped_query_heads_share_neighbouring_keys() -> None:
    """Grouped-query attention equals full attention whose key and value weights are repeated for each group."""
    grouped = Transformer(TransformerConfig(31, 16, 1, 4, n_kv_heads=2, max_length=12)).double()
    full = Transformer(TransformerConfig(31, 16, 1, 4, max_length=12)).double()
    state = grouped.state_dict()
    for name in state:
        if ".key." in name or ".value." in name:
            state[name] = state[name].unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    tokens = torch.arange(12).unsqueeze(0)
    torch.testing.assert_close(full(tokens), grouped(tokens))


def test_positions_may_be_given_for_a_part_of_the_sequence() -> None:
    model = Transformer(TransformerConfig(31, 16, 1, 4, max_length=12)).double()
    tokens = torch.arange(12).unsqueeze(0)
    torch.testing.assert_close(model(tokens), model(tokens, torch.arange(12)), rtol=0, atol=0)
    assert not torch.equal(model(tokens), model(tokens, torch.arange(12).flip(0)))


def test_rotary_attention_depends_on_distances_alone() -> None:
    """Turned by complex numbers, as the paper writes it; and 100 positions further on, nothing has changed."""
    rotary, x = Rotary(6, base=50.0), torch.randn(2, 3, 7, 6, dtype=torch.double)
    where = torch.tensor([0, 1, 2, 5, 9, 4, 3])
    turn = torch.polar(
        torch.ones(7, 3, dtype=torch.double),
        where[:, None] / 50.0 ** (torch.arange(3, dtype=torch.double) / 3),
    )
    turned = torch.complex(x[..., :3].contiguous(), x[..., 3:].contiguous()) * turn
    torch.testing.assert_close(rotary(x, where), torch.cat([turned.real, turned.imag], -1))
    torch.testing.assert_close(rotary(x), rotary(x, torch.arange(7)), rtol=0, atol=0)

    model = Transformer(TransformerConfig(31, 16, 2, 4, max_length=112, **LLAMA)).double()
    tokens = torch.arange(12).unsqueeze(0)
    there = model(tokens, torch.arange(100, 112))
    torch.testing.assert_close(model(tokens), there)
    assert (model(tokens, torch.arange(12) * 2) - there).abs().max() > 1e-5
    one = model.blocks[0]
    y = torch.randn(1, 12, 16, dtype=torch.double)
    torch.testing.assert_close(one(y), one(y, torch.arange(12)), rtol=0, atol=0)


def test_rms_norm_and_swiglu_are_their_papers() -> None:
    model = Transformer(TransformerConfig(31, 16, 1, 4, d_ff=10, norm="rms", mlp="swiglu")).double()
    block, x = model.blocks[0], torch.randn(3, 16, dtype=torch.double)
    scale = x.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    torch.testing.assert_close(block.norm_1(x), x * scale * block.norm_1.weight)
    mlp = block.mlp
    gate = x @ mlp.gate.weight.T + mlp.gate.bias
    expected = (gate * torch.sigmoid(gate) * mlp.up(x)) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("d_model", [128, 768, 2048])
def test_swiglu_holds_about_as_many_weights_as_two_matrices_of_4_d(d_model) -> None:
    config = TransformerConfig(d_model=d_model, mlp="swiglu")
    assert config.ff % 8 == 0
    assert 0 <= 3 * config.ff - 8 * d_model <= 3 * 8


def test_the_defaults_are_gpt2_s_to_the_last_bit() -> None:
    """What lessons print rests on it: the options draw nothing and compute nothing where they are off."""
    model = Transformer(SMALL)
    assert [n for n, _ in model.named_children()] == [
        "token_embedding",
        "position_embedding",
        "dropout",
        "blocks",
        "norm",
        "output",
    ]
    tokens = torch.arange(12).unsqueeze(0)
    x = model.token_embedding.weight[:12] + model.position_embedding.weight
    for block in model.blocks:
        a, y = block.attention, block.norm_1(x)
        q, k, v = (f(y).unflatten(-1, (4, 4)).transpose(0, 1) for f in (a.query, a.key, a.value))
        x = x + a.output(a.core(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1))
        x = x + block.mlp.down(torch.nn.functional.gelu(block.mlp.up(block.norm_2(x))))
    assert torch.equal(model.output(model.norm(x)), model(tokens)[0])


@pytest.mark.parametrize("options", [{}, LLAMA])
def test_transformer_learns_a_sequence(options) -> None:
    model = Transformer(TransformerConfig(31, 16, 2, 4, max_length=12, **options))
    tokens = torch.arange(13).unsqueeze(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert 3 < losses[0] < 4  # near log(31) = 3.43 at the start
    assert losses[-1] < 0.5


def test_tied_means_one_tensor() -> None:
    tied = Transformer(SMALL)
    assert tied.output.weight is tied.token_embedding.weight
    untied = Transformer(TransformerConfig(31, 16, 2, 4, max_length=12, tied=False))
    assert untied.output.weight is not untied.token_embedding.weight


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"d_model": 10, "n_heads": 4}, "d_model=10 .* n_heads=4"),
        ({"n_heads": 4, "n_kv_heads": 3}, "n_heads=4 .* n_kv_heads=3"),
        ({"n_kv_heads": 0}, "n_kv_heads=0"),
        ({"n_layers": 0}, "n_layers .* 0"),
        ({"dropout": 1.0}, "1.0"),
        ({"d_ff": 0}, "d_ff"),
        ({"experts": 2, "top_k": 3}, "experts = 2 .*top_k=3"),
        ({"shared_experts": 1}, "shared_experts=1"),
        ({"norm": "batch"}, "norm is 'layer' or 'rms'; got 'batch'"),
        ({"d_model": 12, "n_heads": 4, "positions": "rotary"}, "d_model=12 .*n_heads=4 gives 3"),
    ],
)
def test_impossible_shapes_are_named(wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**wrong)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(64,\)"):
        MLP((64,))
    with pytest.raises(ValueError, match="at most 3"):
        ConvNet((4, 4, 4, 4))


def test_models_and_data_load_no_plotting() -> None:
    code = (
        "import sys, dtcourse.models, dtcourse.data; "
        "bad = {'matplotlib', 'IPython', 'ipywidgets', 'seaborn', 'sklearn', 'PIL', 'pandas'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
