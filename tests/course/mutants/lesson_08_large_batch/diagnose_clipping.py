"""Answers to diagnose_clipping: see test_exercises.py."""

_SAME = (
    "        if all(torch.equal(g, each[0]) for g in each):\n"
    '            return "same samples", step\n'
)
_STEPS = "    for step, (each, taken) in enumerate(zip(own, used, strict=True)):\n"
_CLOSE = "torch.allclose(taken, clip(mean), rtol=1e-4)"
_EARLY = '"early": torch.stack([clip(g) for g in each]).mean(0)'
_SHARD = '"by shard": torch.cat([clip(part) for part in mean.tensor_split(len(each))])'
_SUM = '"sum\'s norm": clip(each.sum(0)) / len(each)'

MUTANTS = [
    (
        "the first step tells all",
        "in which step does it first differ",
        ((_STEPS, "    for step, (each, taken) in enumerate(zip(own[:1], used[:1])):\n"),),
    ),
    (
        "steps from one",
        "in which step does it first differ",
        ((_STEPS, _STEPS.replace("strict=True)", "strict=True), 1")),),
    ),
    (
        "the last wrong step",
        "in which step does it first differ",
        ((_STEPS, _STEPS.replace("enumerate(", "reversed(list(enumerate(").replace("):", "))):")),),
    ),
    (
        "early is not known",
        "clipped one by one",
        ((_EARLY, '"early": clip(each[0])'),),
    ),
    (
        "shards are of one length, and the rest is forgotten",
        "Cut the mean as the ranks hold it",
        ((_SHARD, '"by shard": torch.zeros_like(mean)'),),
    ),
    (
        "the sum is not divided",
        "Which norm was it compared with",
        ((_SUM, '"sum\'s norm": clip(each.sum(0))'),),
    ),
    ("ranks are not compared", "How large is the noise between", ((_SAME, ""),)),
    (
        "two equal gradients are not enough",
        "How large is the noise between",
        ((_SAME, _SAME.replace("each[0]", "own[0][0]")),),
    ),
    (
        "no rounding allowed",
        "PyTorch's 1e-6",
        ((_CLOSE, "torch.equal(taken, clip(mean))"),),
    ),
    (
        "a healthy run has no clipping",
        "cut to max_norm where it is longer",
        ((_CLOSE, "torch.allclose(taken, mean, rtol=1e-4)"),),
    ),
    (
        "a word, no step",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_clipping(own, used, max_norm):
    return "healthy", None
""",
    ),
    (
        "always the same",
        """
def diagnose_clipping(own, used, max_norm):
    return "early", 1
""",
    ),
]

ACCEPTED = [
    (
        "by length, direction and shards",
        """
def diagnose_clipping(own, used, max_norm):
    ranks = own.shape[1]
    for step in range(len(used)):
        each, taken = own[step], used[step]
        if (each - each[0]).abs().max() < 1e-12:
            return ("same samples", step)
        mean = each.sum(0) / ranks
        length = min(mean.norm(), max_norm)
        turned = torch.cosine_similarity(taken, mean, dim=0) < 1 - 1e-9
        if not turned and abs(taken.norm() / length - 1) < 1e-4:
            continue
        if not turned:
            alone = torch.stack([g / max(1.0, (g.norm() / max_norm).item()) for g in each]).mean(0)
            near = abs(taken.norm() - min(mean.norm(), max_norm / ranks)) < 1e-6
            return ("sum's norm" if near else "early", step)
        shards = torch.stack([part.norm() for part in taken.tensor_split(ranks)])
        whole = torch.stack([part.norm() for part in mean.tensor_split(ranks)])
        if torch.allclose(shards, whole.clamp(max=max_norm)):
            return ("by shard", step)
        return ("early", step)
    return ("healthy", None)
""",
    ),
    (
        "in lists of numbers",
        """
def diagnose_clipping(own, used, max_norm):
    def clip(g):
        norm = math.sqrt(sum(a * a for a in g))
        return [a * min(1.0, max_norm / (norm + 1e-6)) for a in g]

    def far(a, b):
        return math.dist(a, b) / math.hypot(*b)

    for step, (each, taken) in enumerate(zip(own.tolist(), used.tolist())):
        if each.count(each[0]) == len(each):
            return ["same samples", step]
        total = [sum(column) for column in zip(*each)]
        mean = [a / len(each) for a in total]
        if far(clip(mean), taken) < 1e-4:
            continue
        shards = [part.tolist() for part in torch.tensor(mean, dtype=torch.double).tensor_split(len(each))]
        found = {
            "early": [sum(column) / len(each) for column in zip(*map(clip, each))],
            "by shard": sum(map(clip, shards), []),
            "sum's norm": [a / len(each) for a in clip(total)],
        }
        return [min(found, key=lambda kind: far(found[kind], taken)), step]
    return ["healthy", None]
""",
    ),
]
