"""Answers to diagnose_lazy: see test_exercises.py."""

_HEAD = "\ndef diagnose_lazy(gradients, thetas, sent, lr, threshold, history):\n"
_RATE = '        ("learning rate", {"lr": lr / 10}),\n'
_LARGE = '        ("learning rate", {"lr": lr * 10}),\n'
_WINDOW = '        ("one step", {"history": 1}),\n'
_LAST = '        ("last gradient", {"to_last": True}),\n'
_SILENT = '    return "silent", next(rank for rank in ranks if found[rank] != replayed(rank))\n'
_WHICH_RATE = "With which learning rate would the rule explain"

MUTANTS = [
    ("no rule is for another rate", _WHICH_RATE, ((_RATE + _LARGE, ""),)),
    ("a rate is ten times too small, or else right", _WHICH_RATE, ((_LARGE, _LARGE.replace("lr * 10", "lr * 1.0001")),)),
    ("all windows are long enough", "in all the steps on which the rule looks back", ((_WINDOW, ""),)),
    ("a comparison is one", "Which gradient of a rank do the others still count", ((_LAST, ""),)),
    (
        "no rank is named",
        "Do all ranks break the rule, or one",
        ((_SILENT, '    return "silent", None\n'),),
    ),
    ("the rank after it", "Do all ranks break the rule, or one", ((_SILENT, _SILENT.replace("next(", "1 + next(")),)),
    (
        "one step too few is looked back on",
        "Which steps does it look back on",
        (("max(0, step - history)", "max(0, step - history + 1)"),),
    ),
    ("the learning rate is not squared", "in which power does the learning rate count", (("/ lr**2", "/ lr"),)),
    (
        "what was sent is not kept",
        "Which steps does it look back on",
        (("                kept = gradient\n", "                kept = gradients[rank][0]\n"),),
    ),
    ("a name without a place", "A diagnosis is two things", (("            return name, None\n", "            return name\n"),)),
]  # fmt: skip

NOTHING = [
    ("everything is right", _HEAD + '    return "healthy", None\n'),
]

ACCEPTED = [
    (
        "who should have sent, from what was kept, in tensors",
        """
import torch


def diagnose_lazy(gradients, thetas, sent, lr, threshold, history):
    g, theta = torch.tensor(gradients, dtype=torch.double), torch.tensor(thetas, dtype=torch.double)
    steps = g.shape[1]
    moved = theta.diff(dim=0).square().sum(1)

    def holds(rank, rate, window, to_last):
        kept = g[rank, 0]
        for k in range(1, steps):
            limit = threshold * moved[max(0, k - window) : k].sum() / rate**2
            against = g[rank, k - 1] if to_last else kept
            if ((g[rank, k] - against).square().sum() > limit).item() != (rank in sent[k]):
                return False
            kept = g[rank, k] if rank in sent[k] else kept
        return True

    wrong = [rank for rank in range(len(g)) if not holds(rank, lr, history, False)]
    if not wrong:
        return ["healthy", None]
    for name, rate, window, to_last in (
        ("learning rate", lr / 10, history, False),
        ("learning rate", lr * 10, history, False),
        ("one step", lr, 1, False),
        ("last gradient", lr, history, True),
    ):
        if all(holds(rank, rate, window, to_last) for rank in range(len(g))):
            return [name, None]
    return ["silent", wrong[0]]
""",
    ),
    (
        "who is silent comes before the others",
        (
            (
                "    for name, rule in rules:\n",
                "    wrong = [rank for rank in ranks if found[rank] != replayed(rank)]\n"
                "    if len(wrong) == 1 and found[wrong[0]] == [0] and not any(\n"
                "        all(found[rank] == replayed(rank, **rule) for rank in ranks) for _, rule in rules\n"
                "    ):\n"
                '        return "silent", wrong[0]\n'
                "    for name, rule in rules:\n",
            ),
        ),
    ),
]
