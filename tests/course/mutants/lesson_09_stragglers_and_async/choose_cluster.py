"""Answers to choose_cluster: see test_exercises.py."""

_EXCHANGE = "exchange = nbytes / link * (1 + p / S)"
_LATE = "late = sum(1 / i for i in range(b + 1, p + 1))"
_FOUND = "found.append((step * (1 + noise / (p - b)), S, b))"

MUTANTS = [
    ("one server", "gets shorter with one more server", (("range(1, n):", "range(1, 2):"),)),
    ("servers cost nothing", "gets shorter with one more server", (("p = n - S", "p = n - 1"), ("for b in range(p)", "for b in range(n - S)"))),
    ("all workers push at once, 2 p / S", "gets shorter with one more server", (("(1 + p / S)", "(2 * p / S)"),)),
    ("nothing is gained from S = p on", "gets shorter with one more server", (("(1 + p / S)", "(2 * max(1.0, p / S))"),)),
    ("the worker's gradient is cut in the time too", "gets shorter with one more server", (("(1 + p / S)", "((p + 1) / S)"),)),
    ("links are free", "gets shorter with one more server", ((_EXCHANGE, "exchange = 0.0"),)),
    ("no backups", "one more backup take off", (("for b in range(p):", "for b in range(1):"),)),
    ("updates are not counted", "how many more updates", ((_FOUND, "found.append((step, S, b))"),)),
    ("the most gradients per second", "times as long as the best", ((_FOUND, "found.append((step / (p - b), S, b))"),)),
    ("the lesson's tail, 0.1", "times as long as the best", (("1 + tail * late", "1 + 0.1 * late"),)),
    ("backups cut off the short delays", "one more backup take off", ((_LATE, "late = sum(1 / i for i in range(1, p - b + 1))"),)),
    ("the longest", "times as long as the best", (("_, S, b = min(found)", "_, S, b = max(found)"),)),
    ("exchanged", "times as long as the best", (("    return S, b\n", "    return b, S\n"),)),
    ("with its seconds", "two whole numbers", (("    return S, b\n", "    return min(found)\n"),)),
    ("no worker left", "leave no gradient to wait for", (("    return S, b\n", "    return S, n - S\n"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "harmonic numbers in a table, and the fewest servers within half a percent of the best",
        (
            (
                "    found = []\n",
                "    H = [0.0]\n    for i in range(1, n + 1):\n        H.append(H[-1] + 1 / i)\n    found = []\n",
            ),
            (_LATE, "late = H[p] - H[b]"),
            (
                "    _, S, b = min(found)\n",
                "    least = min(found)[0]\n"
                "    _, S, b = min((one for one in found if one[0] <= 1.005 * least), key=lambda one: one[1])\n",
            ),
        ),
    ),
    (
        "a row of backups at once for each number of servers, with tensors",
        """
import torch


def choose_cluster(n, nbytes, link, work, tail, noise):
    H = torch.cat([torch.zeros(1), (1 / torch.arange(1.0, n + 1)).cumsum(0)]).double()
    best = (float("inf"), 1, 0)
    for S in range(1, n):
        p = n - S
        b = torch.arange(p)
        step = work * (1 + tail * (H[p] - H[:p])) + nbytes / link * (1 + p / S)
        total = step * (1 + noise / (p - b))
        best = min(best, (total.min().item(), S, total.argmin().item()))
    return best[1], best[2]
""",
    ),
]

NOTHING = [
    (
        "one server, no backup",
        "\ndef choose_cluster(n, nbytes, link, work, tail, noise):\n    return 1, 0\n",
    ),
    (
        "half of the ranks serve",
        "\ndef choose_cluster(n, nbytes, link, work, tail, noise):\n    return n // 2, 0\n",
    ),
]
