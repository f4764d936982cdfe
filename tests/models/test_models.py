"""The models: seeded, of the shapes they say, and polite about mistakes."""

import subprocess
import sys

import pytest
import torch

from dtcourse.models import (
    MLP,
    ConvNet,
    FusedCausalAttention,
    Transformer,
    TransformerConfig,
    seeded,
)

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
def test_transformer_is_causal(kv_heads, tied) -> None:
    config = TransformerConfig(31, 16, 2, 4, n_kv_heads=kv_heads, tied=tied, max_length=12)
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


def test_transformer_learns_a_sequence() -> None:
    model = Transformer(SMALL)
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
    ],
)
def test_impossible_shapes_are_named(wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**wrong)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"13 tokens.*max_length=12"):
        Transformer(SMALL)(torch.zeros(1, 13, dtype=torch.long))
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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
