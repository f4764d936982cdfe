"""Answers to diagnose_shards: see test_exercises.py."""

_STILL = '    if all(torch.equal(a, b) for a, b in zip(shards[0], shards[-1], strict=True)):\n        return "early optimizer", None\n'
_SCALE = "        scale = min(1.0, max_norm / float(mean.norm()))\n"
_OWN = '            return "no reduce", wrong[0]\n'

MUTANTS = [
    ("standing still is healthy", "Which shards move at all", ((_STILL, ""),)),
    (
        "only the first rank's shard is looked at",
        "No such run goes wrong in its first step",
        (("if not torch.allclose(step", "if r == 0 and not torch.allclose(step"),),
    ),
    (
        "the first step tells all",
        "No such run goes wrong in its first step",
        (
            (
                "shards[:-1], shards[1:], gradients, strict",
                "shards[:1], shards[1:2], gradients[:1], strict",
            ),
        ),
    ),
    (
        "clipping is forgotten",
        "how far from it is rounding",
        ((_SCALE, "        scale = 1.0\n"),),
    ),
    (
        "the local norm is taken for right",
        "By which norm has each rank divided",
        (
            (
                "if not torch.allclose(step, scale * part, atol=1e-9)",
                "if torch.cosine_similarity(step, part, dim=0) < 1 - 1e-9",
            ),
        ),
    ),
    (
        "the rank after it",
        "Whose part moves along another gradient",
        ((_OWN, _OWN.replace("wrong[0]", "wrong[0] + 1")),),
    ),
    (
        "the wrong part is somebody's own gradient",
        "Along which run of the mean gradient",
        (("        if len(wrong) == 1:\n", "        if wrong:\n"),),
    ),
    (
        "no rounding allowed",
        "how far from it is rounding",
        (("torch.allclose(step, scale * part, atol=1e-9)", "torch.equal(step, scale * part)"),),
    ),
    (
        "a word, no rank",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all healthy",
        """
def diagnose_shards(shards, gradients, lr, max_norm):
    return "healthy", None
""",
    ),
    (
        "always the local norm",
        """
def diagnose_shards(shards, gradients, lr, max_norm):
    return "plain clipping", None
""",
    ),
]

ACCEPTED = [
    (
        "each suspicion performed, and compared",
        """
def diagnose_shards(shards, gradients, lr, max_norm):
    p = len(shards[0])

    def close(a, b):
        return all(bool((x - y).abs().max() < 1e-9) for x, y in zip(a, b))

    def steps(turn=0, local=False):
        for now, own in zip(shards, gradients):
            mean = sum(own) / p
            parts = list(mean.chunk(p))
            parts = parts[turn:] + parts[:turn]
            norms = [part.norm() if local else mean.norm() for part in parts]
            scaled = [part * min(1.0, max_norm / float(n)) for part, n in zip(parts, norms)]
            yield [w - lr * g for w, g in zip(now, scaled)]

    after = shards[1:]
    if all(map(close, after, steps())):
        return ("healthy", None)
    if all(map(close, after, shards)):
        return ("early optimizer", None)
    if all(map(close, after, steps(local=True))):
        return ("plain clipping", None)
    if all(map(close, after, steps(turn=1))):
        return ("parts shifted", None)
    off = [
        [bool((x - y).abs().max() > 1e-9) for x, y in zip(a, b)] for a, b in zip(after, steps())
    ]
    return ("no reduce", next(r for r in range(p) if any(step[r] for step in off)))
""",
    ),
    (
        "a list",
        (('    return "healthy", None\n', '    return ["healthy", None]\n'),),
    ),
]
