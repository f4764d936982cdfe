"""Answers to diagnose_attention: see test_exercises.py."""

_OFFSET = '    if is_of(local <= local[:, None]):\n        return "wrong offset", None\n'
_LOST = "is_of(causal & ~((rank[:, None] == r) & (rank == 0)))"

NAMED = "only the keys are counted from 0"

MUTANTS = [
    (
        "a tolerance that small scores stay below",
        "With small scores this error is small",
        (("rtol=1e-4, atol=1e-5", "rtol=0.5, atol=0.5"),),
    ),
    (
        "a tolerance that single precision does not meet",
        "rounded to single precision",
        (("rtol=1e-4, atol=1e-5", "rtol=1e-12, atol=1e-12"),),
    ),
    (
        "only the keys are counted from 0",
        "which pairs are seen",
        (("local <= local[:, None]", "local <= at[:, None]"),),
    ),
    (
        "no offset is ever wrong",
        "which pairs are seen",
        ((_OFFSET, ""),),
    ),
    (
        "the last rank is never looked at",
        "what would they be without rank 0's keys",
        (("for r in range(1, p):", "for r in range(1, p - 1):"),),
    ),
    (
        "the rank after the one that is ill",
        "what would they be without rank 0's keys",
        (('return "lost block", r', 'return "lost block", r + 1'),),
    ),
    (
        "rank 0 has lost the block of the others",
        "what would they be without rank 0's keys",
        ((_LOST, "is_of(causal & ~((rank[:, None] == 0) & (rank == r)))"),),
    ),
    (
        "what is wrong for one rank is a lost block",
        "what would the other mistakes give exactly",
        (('return "not rescaled", None', 'return "lost block", 1'),),
    ),
    (
        "scores that are not scaled",
        "rounded to single precision",
        ((" / q.shape[-1] ** 0.5", ""),),
    ),
    (
        "what is wrong, without a rank",
        "A diagnosis is two things",
        (('return "healthy", None', 'return "healthy"'),),
    ),
]

ACCEPTED = [
    (
        "by PyTorch's attention, and by which tokens are wrong",
        (
            (
                "        right = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v\n",
                "        right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)\n",
            ),
            (
                "    for r in range(1, p):\n        if "
                + _LOST
                + ':\n            return "lost block", r\n',
                "    right = scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v\n"
                "    ill = rank[((out - right).abs() > 1e-5).any(-1).any(0)].unique().tolist()\n"
                "    if len(ill) == 1 and " + _LOST.replace("== r", "== ill[0]") + ":\n"
                '        return "lost block", ill[0]\n',
            ),
        ),
    ),
    (
        "in the relative 2-norm",
        (
            (
                "return torch.allclose(out, right, rtol=1e-4, atol=1e-5)",
                "return bool((out - right).norm() < 1e-5 * right.norm())",
            ),
        ),
    ),
]

NOTHING = [
    ("always healthy", '\ndef diagnose_attention(q, k, v, out, p):\n    return "healthy", None\n'),
    (
        "always the softmax",
        '\ndef diagnose_attention(q, k, v, out, p):\n    return "not rescaled", None\n',
    ),
    ("always rank 1", '\ndef diagnose_attention(q, k, v, out, p):\n    return "lost block", 1\n'),
]
