"""Answers to noise_scale: see test_exercises.py."""

_NOISE = """
def noise_scale(gradients, batch):
    ranks = dist.get_world_size()
    small = gradients.square().sum(1)
    {reduce}
    averaged = gradients.clone()
    dist.all_reduce(averaged)
    big = (averaged / {divide}).square().sum(1)
    b, big_b = {batches}
    signal = (big_b * big - b * small) / (big_b - b)
    noise = (small - big) / (1 / b - 1 / big_b)
    {end}
"""

_NOISE_RIGHT = {
    "reduce": "dist.all_reduce(small); small /= ranks",
    "divide": "ranks",
    "batches": "batch, batch * ranks",
    "end": "signal, noise = signal.mean().item(), noise.mean().item()\n"
    "    return signal, noise, noise / signal if signal > 0 else math.nan",
}

MUTANTS = [
    (
        "its own norm only",
        "of one rank, or the mean over all",
        _NOISE.format(**_NOISE_RIGHT | {"reduce": "pass"}),
    ),
    (
        "the sum for the average",
        "which the average",
        _NOISE.format(**_NOISE_RIGHT | {"divide": "1"}),
    ),
    (
        "forgets the ranks in B",
        "samples of all ranks together",
        _NOISE.format(**_NOISE_RIGHT | {"batches": "batch / ranks, batch"}),
    ),
    (
        "an average of ratios",
        "average each over the steps",
        _NOISE.format(
            **_NOISE_RIGHT
            | {
                "end": "s, n = signal.mean().item(), noise.mean().item()\n"
                "    return s, n, (noise / signal).mean().item() if s > 0 else math.nan"
            }
        ),
    ),
    (
        "the last step only",
        "Which batch has a rank's own gradient",
        _NOISE.format(
            **_NOISE_RIGHT
            | {
                "end": "s, n = signal[-1].item(), noise[-1].item()\n"
                "    return s, n, n / s if s > 0 else math.nan"
            }
        ),
    ),
    (
        "a negative scale",
        "there is no signal to compare with",
        _NOISE.format(
            **_NOISE_RIGHT
            | {"end": "s, n = signal.mean().item(), noise.mean().item()\n    return s, n, n / s"}
        ),
    ),
]

NOTHING = [
    (
        "nothing but noise",
        """
def noise_scale(gradients, batch):
    return 0.0, 0.0, math.nan
""",
    ),
]

ACCEPTED = [
    (
        "one message for both sums",
        """
def noise_scale(gradients, batch):
    ranks = dist.get_world_size()
    both = torch.cat([gradients, gradients.square().sum(1, keepdim=True)], 1) / ranks
    dist.all_reduce(both)
    big, small = both[:, :-1].square().sum(1).mean().item(), both[:, -1].mean().item()
    signal = (ranks * big - small) / (ranks - 1)
    noise = (small - big) * batch * ranks / (ranks - 1)
    return signal, noise, noise / signal if signal > 0 else float("nan")
""",
    ),
    (
        "everyone's gradients gathered",
        """
def noise_scale(gradients, batch):
    ranks = dist.get_world_size()
    parts = [torch.empty_like(gradients) for _ in range(ranks)]
    dist.all_gather(parts, gradients)
    every = torch.stack(parts)
    small = every.square().sum(2).mean()
    big = every.mean(0).square().sum(1).mean()
    whole = batch * ranks
    signal = (whole * big - batch * small) / (whole - batch)
    noise = (small - big) / (1 / batch - 1 / whole)
    return signal, noise, torch.where(signal > 0, noise / signal, torch.nan)
""",
    ),
]
