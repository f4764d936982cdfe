"""Answers to diagnose_experts: see test_exercises.py."""

_OUTPUTS = '    for rank in range(p):\n        if off(found["y"][rank], y[rank]):\n            return "mixed rows", rank\n'
_SUMMED = (
    '    if not off(found["experts"] / p, grad_experts):\n        return "experts summed", None\n'
)
_GATE = '    if any(off(gradient, grad_gate) for gradient in found["gate"]):\n        return "gate local", None\n'
_TOKENS = '    if off(found["x"], grad_x):\n        return "no way back", None\n'

MUTANTS = [
    ("outputs are never looked at", "On which rank are the outputs wrong", ((_OUTPUTS, ""),)),
    ("a factor is never looked for", "By which factor", ((_SUMMED, ""),)),
    ("the gate is never looked at", "Whose tokens are in them", ((_GATE, ""),)),
    ("tokens' gradients are never looked at", "through which experts do those parts come", ((_TOKENS, ""),)),
    ("always the first rank's outputs", "On which rank are the outputs wrong", (('return "mixed rows", rank', 'return "mixed rows", 0'),)),
    ("the expert's rank", "Which expert's gradient is wrong", (('return "local expert", int(wrong.argmax())', 'return "local expert", int(wrong.argmax()) * p // len(experts)'),)),
    ("of each rank's own mean", "Of which loss are the gradients", (("y.square().sum(-1).mean()", "(p * y.square().sum(-1).mean())"),)),
    ("weights that are not renormalised", "the sum of a token's weights", (("top.values / top.values.sum(-1, keepdim=True)", "top.values"),)),
    ("equal to the last digit", "rounding to single precision", (("> 1e-4 * right", "> 1e-13 * right"),)),
    ("everything is near enough", "how far from equal", (("> 1e-4 * right", "> 1e4 * right"),)),
    ("a diagnosis of one thing", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "all experts for all tokens, and gradients before outputs",
        """
import torch


def diagnose_experts(x, gate, experts, k, found):
    p = len(x)

    def loss(x, gate, experts):
        scores = (x @ gate.T).softmax(-1)
        kept = torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)
        weights = scores * kept / (scores * kept).sum(-1, keepdim=True)
        y = torch.einsum("rne,rnd,edf->rnf", weights, x, experts)
        return y.square().sum(-1).mean(), y

    of_x, of_gate, of_experts = torch.func.grad(lambda *t: loss(*t)[0], argnums=(0, 1, 2))(x, gate, experts)
    y = loss(x, gate, experts)[1]

    def differs(a, b):
        return bool(((a - b).abs() > 1e-3 * b.abs().max()).any())

    bad = [r for r in range(p) if differs(found["y"][r], y[r])]
    if bad:
        return ["mixed rows", bad[0]]
    if not torch.allclose(found["gate"][0], found["gate"][1], rtol=1e-3, atol=1e-6):
        return ["gate local", None]
    largest = (found["experts"] - of_experts).flatten(1).abs().amax(1)
    if largest.max() > 1e-3 * of_experts.abs().max():
        ratio = (found["experts"] * of_experts).sum() / of_experts.square().sum()
        if not differs(found["experts"], ratio * of_experts):
            return ["experts summed", None]
        return ["local expert", int(largest.argmax())]
    if differs(found["x"], of_x):
        return ["no way back", None]
    return ["healthy", None]
""",
    ),
    (
        "the largest difference",
        (
            ("return (got - right).norm() > 1e-4 * right.norm()", "return (got - right).abs().max() > 1e-4 * right.abs().max()"),
        ),
    ),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef diagnose_experts(x, gate, experts, k, found):\n    return "healthy", None\n'),
    ("always the first rank", '\ndef diagnose_experts(x, gate, experts, k, found):\n    return "mixed rows", 0\n'),
]  # fmt: skip
