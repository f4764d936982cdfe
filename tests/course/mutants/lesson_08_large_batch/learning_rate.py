"""Answers to learning_rate: see test_exercises.py."""

_RATE = """
def learning_rate(samples, batch, base_lr, base_batch, warmup, total):
    if batch < 1 or base_batch < 1 or warmup >= total:
        raise ValueError("no")
    peak = {peak}
    if samples < warmup:
        return {warm}
    done = {done}
    return peak * (1 + math.cos(math.pi * done)) / 2
"""

_RIGHT = {
    "peak": "base_lr * batch / base_batch",
    "warm": "base_lr + (peak - base_lr) * samples / warmup",
    "done": "min(1.0, (samples - warmup) / (total - warmup))",
}

MUTANTS = [
    (
        "warms up from nothing",
        "none at all, or the one that suits",
        _RATE.format(**_RIGHT | {"warm": "peak * samples / warmup"}),
    ),
    (
        "the square-root rule",
        "linear rule raise a learning rate",
        _RATE.format(**_RIGHT | {"peak": "base_lr * math.sqrt(batch / base_batch)"}),
    ),
    (
        "counts steps",
        "What do you divide by",
        _RATE.format(**_RIGHT | {"warm": "base_lr + (peak - base_lr) * samples / batch / warmup"}),
    ),
    (
        "the cosine begins at the start",
        "The cosine begins where the warm-up ends",
        _RATE.format(**_RIGHT | {"done": "min(1.0, samples / total) if samples > warmup else 0.0"}),
    ),
    (
        "goes on beyond the end",
        "comes up again",
        _RATE.format(**_RIGHT | {"done": "(samples - warmup) / (total - warmup)"}),
    ),
    (
        "refuses nothing",
        "should raise a ValueError",
        _RATE.format(**_RIGHT).replace('raise ValueError("no")', "return 0.0"),
    ),
]

NOTHING = [
    (
        "refuses everything",
        """
def learning_rate(samples, batch, base_lr, base_batch, warmup, total):
    raise ValueError
""",
    ),
    (
        "one rate",
        """
def learning_rate(samples, batch, base_lr, base_batch, warmup, total):
    return base_lr
""",
    ),
]

ACCEPTED = [
    (
        "the square of half the angle's cosine",
        (
            (
                "return peak * (1 + math.cos(math.pi * done)) / 2",
                "return peak * math.cos(math.pi * done / 2) ** 2",
            ),
        ),
    ),
    (
        "torch's cosine in double, the warm-up as a mean of two rates",
        (
            (
                "return base_lr + (peak - base_lr) * samples / warmup",
                "part = samples / warmup\n        return (1 - part) * base_lr + part * peak",
            ),
            ("math.cos(math.pi * done)", "torch.tensor(math.pi * done, dtype=torch.double).cos()"),
        ),
    ),
]
