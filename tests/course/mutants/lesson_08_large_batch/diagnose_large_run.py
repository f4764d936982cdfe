"""Answers to diagnose_large_run: see test_exercises.py."""

_ALIKE = "            if all(abs(norms[a] / norms[b] - 1) < 1e-3 for norms in own):\n"
_SUMMED = '    if sum(taken) > sum(map(sum, own)) / ranks:\n        return "summed"\n'
_RATE = "        rate = moved[step] / taken[step]\n"
_PLANNED = (
    '            fixed = moved[-1] / taken[-1] < 1.01 * plan["base_lr"]\n'
    '            return "not scaled" if fixed else "warm-up in steps"\n'
)
_UNSTABLE = '    if max(loss) > 1.4 * loss[0]:\n        return "unstable"\n'
_SMALL = "    small = sum(n * n for norms in own for n in norms) / ranks / len(own)\n"
_SIZE = "    ratio = noise / signal / batch\n"
_HEALTHY = '    return "too large" if 1 + 2 * ratio < 1.1 * (1 + ratio) else "healthy"\n'


MUTANTS = [
    (
        "the loss of the last step, which has come down again",
        "What does the loss do there",
        ((_UNSTABLE, _UNSTABLE.replace("max(loss)", "loss[-1]")),),
    ),
    (
        "the lesson's sign: no noise between all ranks",
        "Two ranks there have one gradient",
        (
            (
                _ALIKE,
                "            if all(max(norms) / min(norms) < 1.001 for norms in own):\n",
            ),
        ),
    ),
    (
        "two norms that are near each other in one step",
        "How far do ranks' norms differ",
        ((_ALIKE, _ALIKE.replace("all(", "any(").replace("1e-3", "3e-2")),),
    ),
    ("a sum is not known", "How long can the mean of gradients be", ((_SUMMED, ""),)),
    (
        "the learning rate is the weights' way beside the ranks' own norms",
        "what is the learning rate of each step",
        ((_RATE, "        rate = moved[step] / (sum(own[step]) / ranks)\n"),),
    ),
    (
        "a learning rate that still grows was not scaled",
        "Where does the learning rate reach its highest value",
        ((_PLANNED, '            return "not scaled"\n'),),
    ),
    (
        "a learning rate that stays is a long warm-up",
        "How far do the weights move there",
        ((_PLANNED, '            return "warm-up in steps"\n'),),
    ),
    (
        "the noise beside a rank's samples, not beside all",
        "how many steps does half the batch need",
        ((_SIZE, _SIZE.replace("/ batch", "/ samples")),),
    ),
    (
        "no noise in a single rank's gradient",
        "does a step cut the noise by much",
        ((_SMALL, "    small = sum(n * n for n in taken) / len(taken)\n"),),
    ),
    (
        "the noise is asked before the loss",
        "While it rises",
        (
            (_UNSTABLE, ""),
            (
                _HEALTHY,
                _HEALTHY.replace(
                    '"healthy"', '("unstable" if max(loss) > 1.4 * loss[0] else "healthy")'
                ),
            ),
        ),
    ),
    (
        "two things",
        "A diagnosis is one of",
        ((_UNSTABLE, _UNSTABLE.replace('"unstable"', '("unstable", 3)')),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_large_run(loss, own, taken, moved, plan):
    return "healthy"
""",
    ),
    (
        "always the same",
        """
def diagnose_large_run(loss, own, taken, moved, plan):
    return "too large"
""",
    ),
]

ACCEPTED = [
    (
        "as tensors, every learning rate beside the planned one, and the noise's share of the squared norm",
        """
def diagnose_large_run(loss, own, taken, moved, plan):
    own, taken, moved = (torch.tensor(x, dtype=torch.double) for x in (own, taken, moved))
    steps, ranks = own.shape
    apart = (own[:, :, None] / own[:, None, :] - 1).abs().amax(0) + torch.eye(ranks)
    if apart.min() < 5e-3:
        return "same samples"
    if (taken > own.max(1).values).float().mean() > 0.5:
        return "summed"
    batch = ranks * plan["samples"]
    grown = (torch.arange(steps) * batch / plan["warmup"]).clamp(max=1)
    wanted = plan["base_lr"] * (1 + (batch / plan["base_batch"] - 1) * grown)
    used = moved / taken
    if (used / wanted - 1).abs().max() > 0.02:
        return "not scaled" if used.max() < 1.02 * used.min() else "warm-up in steps"
    if max(loss) / loss[0] > 1.4:
        return "unstable"
    small, big = own.square().mean(), taken.square().mean()
    noise = (small - big) * ranks / (ranks - 1)  # of one rank's gradient
    return "too large" if noise / ranks < 0.12 * big else "healthy"
""",
    ),
    (
        "the noise scale step by step, and its median",
        """
def diagnose_large_run(loss, own, taken, moved, plan):
    from statistics import median

    ranks, b = len(own[0]), plan["samples"]
    columns = list(zip(*own))
    for i in range(ranks):
        for j in range(i):
            if max(abs(x - y) / y for x, y in zip(columns[i], columns[j])) < 1e-2:
                return "same samples"
    if taken[0] > max(own[0]) and taken[1] > max(own[1]):
        return "summed"
    at = math.ceil(plan["warmup"] / (ranks * b))
    found = moved[at] / taken[at] / plan["base_lr"]
    if found < 1.02:
        return "not scaled"
    if found < 0.98 * ranks * b / plan["base_batch"]:
        return "warm-up in steps"
    if max(loss) > 1.5 * loss[0]:
        return "unstable"
    shares = []
    for norms, took in zip(own, taken):
        small = sum(n * n for n in norms) / ranks
        shares.append((small - took * took) / (ranks - 1) / (took * took))
    return "too large" if median(shares) < 0.15 else "healthy"
""",
    ),
]
