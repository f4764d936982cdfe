"""Answers to diagnose_clipping: see test_exercises.py."""

_SAME = (
    "        if all(same(norm, average) for norm in each):\n"
    '            return "same samples", step  # no noise: ranks that differ have a shorter mean\n'
)
_STEPS = "    for step, (each, average, length) in enumerate(zip(own, mean, taken, strict=True)):\n"
_RIGHT = "same(length, min(average, max_norm))"
_LONG = '            return "late" if same(length, average) else "by shard", step\n'
_SHORT = (
    """        return "sum's norm" if same(length, max_norm / len(each)) else "early", step\n"""
)
_TOLERANCE = "1e-3 * max(a, b)"

MUTANTS = [
    (
        "the first step tells all",
        "in which step is it first too short",
        ((_STEPS, _STEPS.replace("own, mean", "own[:1], mean").replace(", strict=True", "")),),
    ),
    (
        "steps from one",
        "in which step is it first too short",
        ((_STEPS, _STEPS.replace("strict=True)", "strict=True), 1")),),
    ),
    (
        "the last wrong step",
        "How long can the mean of gradients be",
        ((_STEPS, _STEPS.replace("enumerate(", "reversed(list(enumerate(").replace("):", "))):")),),
    ),
    (
        "late is not known",
        "How long is what the optimizer took there",
        ((_LONG, '            return "by shard", step\n'),),
    ),
    (
        "shards are not known",
        "How long can the whole be",
        ((_LONG, '            return "late", step\n'),),
    ),
    (
        "the sum is not known",
        "The sum is ranks times as long",
        ((_SHORT, '        return "early", step\n'),),
    ),
    (
        "the lesson's sentence: too short is a rank's own norm, and nothing else is",
        "The sum is ranks times as long",
        (
            (_SHORT, '        return "early", step\n'),
            (_LONG, '            return "by shard", step\n'),
        ),
    ),
    (
        "each rank's norm tells of early clipping",
        "Which gradients are long there",
        ((_RIGHT, "same(length, min(average, max_norm)) and max(each) <= max_norm"),),
    ),
    ("ranks are not compared", "How large is the noise between", ((_SAME, ""),)),
    (
        "no rounding allowed",
        "how exact are the log's norms",
        ((_TOLERANCE, "1e-12 * max(a, b)"),),
    ),
    (
        "a healthy run has no clipping",
        "Which gradients are long there",
        ((_RIGHT, "same(length, average)"),),
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
def diagnose_clipping(own, mean, taken, max_norm):
    return "healthy", None
""",
    ),
    (
        "always the same",
        """
def diagnose_clipping(own, mean, taken, max_norm):
    return "early", 1
""",
    ),
]

ACCEPTED = [
    (
        "by the noise, and by what each mistake would leave",
        """
def diagnose_clipping(own, mean, taken, max_norm):
    for step, lengths in enumerate(own):
        ranks, average, took = len(lengths), mean[step], taken[step]
        noise = sum(n * n for n in lengths) / ranks - average**2
        if noise < 1e-3 * average**2:
            return "same samples", step
        left = {"healthy": min(average, max_norm), "sum's norm": min(average, max_norm / ranks), "late": average}
        near = [what for what, norm in left.items() if abs(norm - took) < 1e-3 * norm]
        if "healthy" in near:
            continue
        if near:
            return near[0], step
        return ("by shard" if took > max_norm else "early"), step
    return "healthy", None
""",
    ),
    (
        "as tensors",
        """
def diagnose_clipping(own, mean, taken, max_norm):
    own, mean, taken = (torch.tensor(x, dtype=torch.double) for x in (own, mean, taken))
    close = lambda a, b: torch.isclose(a, b, rtol=1e-4)
    alike = close(own, mean[:, None]).all(1)
    wrong = alike | ~close(taken, mean.clamp(max=max_norm))
    if not wrong.any():
        return ["healthy", None]
    at = int(wrong.int().argmax())
    if alike[at]:
        return ["same samples", at]
    if taken[at] > max_norm:
        return ["late" if close(taken[at], mean[at]) else "by shard", at]
    whole = torch.tensor(max_norm / own.shape[1], dtype=torch.double)
    return ["sum's norm" if close(taken[at], whole) else "early", at]
""",
    ),
]
