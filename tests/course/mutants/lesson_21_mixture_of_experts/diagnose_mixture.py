"""Answers to diagnose_mixture: see test_exercises.py."""

_HEALTHY = '    if is_of(weights, capacity, 1):\n        return "healthy", None\n'
_UNWEIGHTED = (
    '    if is_of(torch.ones_like(weights), capacity, 1):\n        return "unweighted", None\n'
)
_LOST = "    for e in range(num_experts):\n        if is_of(weights, capacity, 1, lost=e):\n            return "
_TAKEN = "                taken[part, e] += 1\n"

MUTANTS = [
    (
        "unweighted is never said",
        "if each pair counted fully",
        ((_UNWEIGHTED, ""),),
    ),
    (
        "weights that are not renormalised",
        "What is the sum of a token's weights",
        (("top.values / top.values.sum(-1, keepdim=True)", "top.values"),),
    ),
    (
        "token by token instead of choice by choice",
        "all first choices or both of the first token",
        (
            (
                "        for choice in range(k):\n            for n in range(num_tokens):\n",
                "        for n in range(num_tokens):\n            for choice in range(k):\n",
            ),
        ),
    ),
    (
        "no capacity",
        "How many pairs does it take",
        (("if taken[part, e] <= capacity and e != lost", "if e != lost"),),
    ),
    (
        "a capacity of one pair more",
        "How many pairs does it take",
        (("taken[part, e] <= capacity", "taken[part, e] <= capacity + 1"),),
    ),
    (
        "a tolerance that single precision does not meet",
        "rounded to single precision",
        (("rtol=1e-4, atol=1e-5", "rtol=1e-13, atol=1e-13"),),
    ),
    (
        "a tolerance that meets everything",
        "if each pair counted fully",
        (("rtol=1e-4, atol=1e-5", "rtol=9.0, atol=9.0"),),
    ),
    (
        "the expert after the one that is lost",
        "Which expert's, and what remains",
        (('return "lost expert", e', 'return "lost expert", e + 1'),),
    ),
    (
        "the last expert is never looked at",
        "Which expert's, and what remains",
        (
            (
                "for e in range(num_experts):\n        if",
                "for e in range(num_experts - 1):\n        if",
            ),
        ),
    ),
    (
        "what is left is a lost expert",
        "Who counts to which number",
        (('return "capacity per rank", None', 'return "lost expert", 0'),),
    ),
    (
        "a lost expert's pairs take no place",
        "Which expert's, and what remains",
        ((_LOST, "    for e in ():\n        if True:\n            return "),),
    ),
    (
        "what is wrong, without an expert",
        "A diagnosis is two things",
        (('return "healthy", None', 'return "healthy"'),),
    ),
]

ACCEPTED = [
    (
        "by tables, and each rank's capacity looked for before lost experts",
        (
            (
                "        taken = torch.zeros(parts, num_experts, dtype=torch.long)\n",
                "        chosen = torch.nn.functional.one_hot(top.indices.T, num_experts)\n"
                "        places = [(chosen[:, s].flatten(0, 1).cumsum(0)).view_as(chosen[:, s]) for s in torch.arange(num_tokens).chunk(parts)]\n"
                "        kept = (chosen * (torch.cat(places, 1) <= capacity)).transpose(0, 1)\n"
                "        if lost is not None:\n            kept[..., lost] = 0\n"
                "        table = torch.einsum('nk,nke->ne', weights, kept.to(weights.dtype))\n"
                "        return torch.allclose(out, torch.einsum('ne,ned->nd', table, outputs), rtol=1e-4, atol=1e-5)\n\n"
                "    def slowly(weights, capacity, parts, lost=None):\n"
                "        taken = torch.zeros(parts, num_experts, dtype=torch.long)\n",
            ),
            (
                "    for e in range(num_experts):\n        if",
                '    if is_of(weights, -(-capacity // p), p):\n        return "capacity per rank", None\n'
                "    for e in range(num_experts):\n        if",
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
    (
        "always healthy",
        '\ndef diagnose_mixture(logits, outputs, out, k, capacity, p):\n    return "healthy", None\n',
    ),
    (
        "always the capacity",
        '\ndef diagnose_mixture(logits, outputs, out, k, capacity, p):\n    return "capacity per rank", None\n',
    ),
    (
        "always expert 0",
        '\ndef diagnose_mixture(logits, outputs, out, k, capacity, p):\n    return "lost expert", 0\n',
    ),
]
