"""Answers to diagnose_update: see test_exercises.py."""

_RIGHT = "    right = counts / counts.sum()\n"
_HELD = '        return ("never freed" if held[-1] >= held[0] else "healthy"), None\n'
_MISSING = '            return "one missing", i\n'

MUTANTS = [
    (
        "each micro-batch counts 1/m, so that is healthy",
        "What does each micro-batch count",
        ((_RIGHT, "    right = torch.full_like(counts, 1 / len(tokens))\n"),),
    ),
    (
        "not a digit may differ",
        "how far from equal is rounding",
        (("<= 1e-4 * got.norm()", "== 0"),),
    ),
    (
        "a sum is m times the right update",
        "whatever they hold",
        (("is_sum(torch.ones_like(right))", "is_sum(len(tokens) * right)"),),
    ),
    (
        "the micro-batch after it",
        "whose gradient has that direction",
        ((_MISSING, '            return "one missing", (i + 1) % len(tokens)\n'),),
    ),
    (
        "only the first one can be missing, since zero_grad comes after it",
        "whose gradient has that direction",
        (("for i in range(len(tokens)):", "for i in range(1):"),),
    ),
    (
        "what fits nothing else is missing one",
        "What else could a backward have seen",
        (('    return "other random numbers", None\n', '    return "one missing", len(tokens) - 1\n'),),
    ),
    (
        "memory is not looked at",
        "still hold of a micro-batch",
        ((_HELD, '        return "healthy", None\n'),),
    ),
    (
        "whatever is held at the end was never freed",
        "hold besides activations",
        ((_HELD, _HELD.replace("held[-1] >= held[0]", "held[-1] > 0")),),
    ),
    (
        "memory is to fall from the first backward on, and without recomputation alone it does not",
        "still hold of a micro-batch",
        ((_HELD, _HELD.replace("held[-1] >= held[0]", "held[-1] > max(held[: len(tokens)])")),),
    ),
    (
        "a word, no place",
        "A diagnosis is two things",
        ((_HELD, _HELD.replace(", None", "")),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "all healthy",
        """
def diagnose_update(tokens, alone, update, memory):
    return "healthy", None
""",
    ),
    (
        "always the first one missing",
        """
def diagnose_update(tokens, alone, update, memory):
    return "one missing", 0
""",
    ),
]

ACCEPTED = [
    (
        "the weights are solved for, and then named",
        """
def diagnose_update(tokens, alone, update, memory):
    names = sorted(update)
    columns = [torch.cat([one[n].flatten() for n in names]).double() for one in alone]
    each, got = torch.stack(columns, 1), torch.cat([update[n].flatten() for n in names]).double()
    weights = torch.linalg.lstsq(each, got[:, None], driver="gelsd").solution[:, 0]
    if (each @ weights - got).norm() > 1e-4 * got.norm():
        return ["other random numbers", None]
    m, total = len(tokens), sum(tokens)

    def near(these):
        return (each @ (weights - torch.tensor(these, dtype=torch.double))).norm() <= 1e-4 * got.norm()

    if near([n / total for n in tokens]):
        after = dict(memory)
        last = int(memory[-1][0][1:])
        return ["never freed" if after[f"B{last}"] >= max(after.values()) else "healthy", None]
    if near([1 / m] * m):
        return ["weighed alike", None]
    if near([1.0] * m):
        return ["summed", None]
    return ["one missing", int(weights.abs().argmin())]
""",
    ),
    (
        "what is between the right update and this one is compared with each part",
        """
def diagnose_update(tokens, alone, update, memory):
    def off(scale, skip=None):
        worst = 0.0
        for name, got in update.items():
            want = sum(scale(n) * one[name] for i, (n, one) in enumerate(zip(tokens, alone)) if i != skip)
            want = want if isinstance(want, torch.Tensor) else torch.zeros_like(got)
            worst = max(worst, float((got - want).abs().max() / got.abs().max()))
        return worst

    total, m = sum(tokens), len(tokens)
    if off(lambda n: n / total) < 1e-4:
        falls = [b for a, b in memory if a[0] == "B"]
        return ("healthy" if falls[-1] < falls[0] or (m == 1 and falls[0] < memory[0][1]) else "never freed", None)
    if off(lambda n: 1 / m) < 1e-4:
        return "weighed alike", None
    if off(lambda n: 1) < 1e-4:
        return "summed", None
    place = min(range(m), key=lambda i: off(lambda n: n / total, i))
    found = off(lambda n: n / total, place) < 1e-4
    return ("one missing", place) if found else ("other random numbers", None)
""",
    ),
]
