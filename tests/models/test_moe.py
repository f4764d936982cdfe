"""Mixtures of experts: as a loop over tokens computes them, with the papers' losses, and what a capacity drops."""

import math

import pytest
import torch
from torch import nn

from dtcourse.models import (
    BiasBalancedGate,
    ExpertChoiceGate,
    Experts,
    MoE,
    TopKGate,
    Transformer,
    TransformerConfig,
)
from dtcourse.models.moe import balancing_loss, capacity_of, with_capacity
from dtcourse.verify import compare, gradients_of

D, E, N = 6, 4, 10
GATES = {
    "top 2": lambda: TopKGate(D, E, 2),
    "top 2, plain": lambda: TopKGate(D, E, 2, renormalise=False),
    "all": lambda: TopKGate(D, E, E),
    "switch": lambda: TopKGate(D, E, 1),
    "noisy": lambda: TopKGate(D, E, 2, noise=True),
    "by bias": lambda: BiasBalancedGate(D, E, 2),
    "expert choice": lambda: ExpertChoiceGate(D, E, 1.5),
}


def built(gate, kind="gelu", bias=True, **options):
    torch.manual_seed(0)
    moe = MoE(GATES[gate](), Experts(E, D, 5, kind=kind, bias=bias), **options).double()
    for parameter in moe.parameters():
        nn.init.normal_(parameter)
    return moe


def one_by_one(moe, x_ND):
    """The formula, token by token: softmax, the largest, the weighted sum of whole MLPs."""
    gate, experts, out = moe.gate, moe.experts, []
    scores_NE = (x_ND @ gate.linear.weight.T).softmax(-1)
    chosen = (
        [list(row.topk(getattr(gate, "k", 1)).indices) for row in scores_NE]
        if isinstance(gate, TopKGate)
        else None
    )
    if isinstance(gate, BiasBalancedGate):
        scores_NE = (x_ND @ gate.linear.weight.T).sigmoid()
        chosen = [list((row + gate.bias_E).topk(gate.k).indices) for row in scores_NE]
    if chosen is None:
        each = math.ceil(gate.k * len(x_ND) / E)
        takes = [set(scores_NE[:, e].topk(each).indices.tolist()) for e in range(E)]
        chosen = [[e for e in range(E) if n in takes[e]] for n in range(len(x_ND))]
    for x, scores, mine in zip(x_ND, scores_NE, chosen, strict=True):
        total = sum(scores[e] for e in mine) if getattr(gate, "renormalise", False) else 1.0
        y = torch.zeros(D, dtype=x.dtype)
        for e in mine:
            hidden = x @ experts.up[e] + experts.up_bias[e]
            if experts.gate is None:
                hidden = nn.functional.gelu(hidden)
            else:
                hidden = nn.functional.silu(x @ experts.gate[e] + experts.gate_bias[e]) * hidden
            y = y + scores[e] / total * (hidden @ experts.down[e] + experts.down_bias[e])
        out.append(y)
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
@pytest.mark.parametrize("gate", GATES)
def test_it_is_the_weighted_sum_of_whole_mlps(gate, kind):
    moe = built(gate, kind).eval()  # noise is for training
    if gate == "by bias":
        moe.gate.bias_E[1] = 3.0
    x = torch.randn(N, D, dtype=torch.double)
    results = []
    for forward in (moe, lambda x: one_by_one(moe, x)):
        moe.zero_grad()
        x.requires_grad_().grad = None
        y = forward(x)
        (y**3).sum().backward()
        results.append(gradients_of(moe) | {"x": x.grad, "y": y.detach()})
    compare(*results, tolerance=1e-10, norm=2)
    assert torch.equal(moe(x.view(2, 5, D)).view(N, D), moe(x)), "whatever the dims before the last"


def test_what_each_gate_promises():
    x = torch.randn(64, D, dtype=torch.double)
    routing = built("top 2").gate(x)
    sums = torch.zeros(64, dtype=torch.double).index_add(0, routing.tokens_R, routing.weights_R)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert routing.counts_E.sum() == 2 * 64

    switch = built("switch")
    switch(x).sum().backward()
    assert switch.gate.linear.weight.grad.abs().min() > 0, "the weight is the probability"

    noisy = built("noisy").gate
    nn.init.zeros_(noisy.noise.weight)
    torch.manual_seed(1)
    seen = torch.stack([noisy(x).logits_NE for _ in range(50)])
    assert (seen.std(0).mean() - math.log(2)).abs() < 0.02, "softplus(0) at the start"
    noisy.eval()
    assert torch.equal(noisy(x).logits_NE, noisy(x).logits_NE)

    counts = built("expert choice").gate(x).counts_E
    assert counts.tolist() == [24] * 4
    assert built("expert choice").gate(x[:1]).counts_E.tolist() == [1] * 4, "no more than there are"


def test_a_bias_balances_without_a_gradient():
    torch.manual_seed(0)
    gate = BiasBalancedGate(D, E, 1, rate=0.05)
    x = torch.randn(256, D).abs()
    with torch.no_grad():
        gate.linear.weight[2] = 1.0  # everybody's favourite
    before = gate(x).counts_E
    for _ in range(200):
        gate.update(gate(x).counts_E)
    after = gate(x).counts_E
    assert before.max() > 200
    assert after.max() < 2 * 64
    assert not [n for n, _ in gate.named_parameters() if "bias" in n]
    weights = gate(x).weights_R
    gate.bias_E += 100.0
    assert torch.equal(gate(x).weights_R, weights), "who, not with what weight"


def test_capacity_keeps_first_choices_and_drops_the_rest():
    moe = built("top 2")
    x = torch.randn(N, D, dtype=torch.double)
    whole = moe.gate(x)
    cut = with_capacity(whole, 3)
    assert cut.counts_E.tolist() == whole.counts_E.clamp(max=3).tolist()
    pairs = list(zip(whole.tokens_R.tolist(), whole.experts_R.tolist(), strict=True))
    room, right = [3] * E, []
    for token, expert in pairs:  # all first choices come before all second ones
        room[expert] -= 1
        right += [(token, expert)] * (room[expert] >= 0)
    assert list(zip(cut.tokens_R.tolist(), cut.experts_R.tolist(), strict=True)) == right

    assert capacity_of(N, E, 2, 1.0) == 5
    moe.capacity_factor = 0.6
    y = moe(x)
    assert moe.counts_E.max() <= 3 == capacity_of(N, E, 2, 0.6)
    assert moe.num_dropped == 2 * N - moe.counts_E.sum()
    served = set(with_capacity(whole, 3).tokens_R.tolist())
    for token in set(range(N)) - served:
        assert not y[token].any(), "a token that nobody takes goes round the layer"
    assert moe(x[:0]).shape == (0, D), "a rank may have no tokens"
    moe.capacity_factor = None
    assert moe(x) is not None
    assert moe.num_dropped == 0


def test_the_losses_are_the_papers():
    even, all_to_one = torch.full((E,), 5), torch.tensor([20, 0, 0, 0])
    uniform = torch.full((E,), 0.25)
    assert balancing_loss(even, uniform) == 1.0
    assert balancing_loss(all_to_one, torch.tensor([1.0, 0, 0, 0])) == E
    # A mean of two halves' losses is not the loss of the whole: each half sends all to one expert, the whole is even.
    halves = [torch.tensor([10, 0]), torch.tensor([0, 10])]
    scores = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]
    assert sum(map(balancing_loss, halves, scores)) / 2 == 2.0
    assert balancing_loss(sum(halves), sum(scores) / 2) == 1.0
    only_z = MoE(TopKGate(1, 2, 1), Experts(2, 1, 5), balancing=0.0, z=1.0)
    nn.init.ones_(only_z.gate.linear.weight)
    only_z(torch.tensor([[0.0], [3.0]]))  # logits (0, 0) and (3, 3)
    expected = (math.log(2) ** 2 + (3 + math.log(2)) ** 2) / 2
    assert only_z.auxiliary_loss.item() == pytest.approx(expected)

    moe = built("top 2", balancing=0.5, z=0.25)
    # What is dropped counts as well: it is the gate's wish that is to be balanced.
    moe.capacity_factor = 0.5
    x = torch.randn(N, D, dtype=torch.double)
    moe(x)
    routing = moe.gate(x)
    mine = 0.5 * balancing_loss(routing.counts_E, routing.scores_NE.mean(0))
    z = routing.logits_NE.logsumexp(-1).square().mean()
    torch.testing.assert_close(moe.auxiliary_loss, mine + 0.25 * z)


def test_the_balancing_loss_balances():
    torch.manual_seed(0)
    x, loads = torch.randn(512, D) + 1.0, []
    for weight in (0.0, 1.0):
        torch.manual_seed(1)
        moe = MoE(TopKGate(D, E, 1), Experts(E, D, 5), balancing=weight)
        with torch.no_grad():
            moe.gate.linear.weight[0] += 1.0
        optimizer = torch.optim.Adam(moe.parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            moe(x)
            (moe.auxiliary_loss + 0 * sum(p.sum() for p in moe.parameters())).backward()
            optimizer.step()
        loads.append(moe.counts_E.max().item() / 512)
    assert loads[0] > 0.8
    assert loads[1] < 0.5


def test_one_expert_is_a_plain_mlp():
    config = TransformerConfig(31, 16, 2, 4, max_length=12, mlp="swiglu")
    one = TransformerConfig(31, 16, 2, 4, max_length=12, mlp="swiglu", experts=1, top_k=1, balancing=0.0)  # fmt: skip
    plain, moe = Transformer(config).double(), Transformer(one).double()
    state = plain.state_dict()
    for name in list(state):
        if ".mlp." in name:
            part, kind = name.split(".")[-2:]
            new = name.replace(f"{part}.{kind}", f"experts.{part}" + ("_bias" if kind == "bias" else ""))  # fmt: skip
            value = state.pop(name)
            state[new] = (value.T if kind == "weight" else value).unsqueeze(0)
    missing = moe.load_state_dict(state, strict=False)
    assert {n.split("mlp.")[1] for n in missing.missing_keys} == {"gate.linear.weight"}
    assert not missing.unexpected_keys
    tokens = torch.arange(13).unsqueeze(0)
    torch.testing.assert_close(moe(tokens[:, :-1]), plain(tokens[:, :-1]))


@pytest.mark.parametrize("shared", [0, 1])
def test_a_transformer_with_experts_learns(shared):
    config = TransformerConfig(31, 16, 2, 4, max_length=12, d_ff=8, experts=4, shared_experts=shared)  # fmt: skip
    model = Transformer(config)
    stds = {n: p.std().item() for n, p in model.named_parameters() if "mlp.experts" in n}
    assert all(std == 0 for n, std in stds.items() if "bias" in n)
    assert 0.006 < stds["blocks.0.mlp.experts.down"] < 0.013 < stds["blocks.0.mlp.experts.up"]
    tokens = torch.arange(13).unsqueeze(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 < 3 < losses[0]
    alone = nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
    gates = sum(block.mlp.auxiliary_loss for block in model.blocks)
    torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:]), alone + gates)
    # Techniques wrap blocks (checkpoints, shards): the loss finds the experts inside.
    for i, block in enumerate(model.blocks):
        model.blocks[i] = nn.Sequential(block)
    torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:]), alone + gates)
    assert gates > 0.9 * 2 * config.balancing


def test_mistakes_are_named():
    for make, message in (
        (lambda: TopKGate(D, 4, 5), "k=5"),
        (lambda: ExpertChoiceGate(D, 4, 0), "k=0"),
        (lambda: Experts(2, D, 5, kind="relu"), "'relu'"),
        (lambda: MoE(TopKGate(D, 4), Experts(3, D, 5)), "4 experts, and there are 3"),
        (lambda: capacity_of(4, 2, 1, 0.0), "above 0; got 0.0"),
        (
            lambda: MoE(ExpertChoiceGate(D, 4), Experts(4, D, 5), capacity_factor=1.5),
            "lower k, and leave out capacity_factor=1.5",
        ),
        (lambda: with_capacity(TopKGate(D, 4)(torch.ones(2, D)), 0), "got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
