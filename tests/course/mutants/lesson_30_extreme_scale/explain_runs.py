"""Answers to explain_runs: see test_exercises.py."""

_HEAD = "\nimport numpy as np\n\n\ndef explain_runs(runs, length, tokens):\n"
_SAME = "What of a token's work is the same for any length"
_EQUAL = "Which of the two parts does each number"
_RETURN = "    return tokens * (alone + per_length * length), alone / per_length\n"
_ROWS = "rows = np.stack([np.ones_like(lengths), lengths], axis=1)"
_PER_TOKEN = "per_token = np.array([seconds / all_of_them for _, all_of_them, seconds in runs])"

MUTANTS = [
    (
        "a token takes as long, whatever the length",
        _SAME,
        _HEAD
        + """    each = sum(seconds / n for _, n, seconds in runs) / len(runs)
    return tokens * each, 1e4
""",
    ),
    (
        "as in the longest run",
        _SAME,
        _HEAD
        + """    _, n, seconds = max(runs)
    return tokens * seconds / n, 1e4
""",
    ),
    (
        "in proportion to the length",
        _SAME,
        _HEAD
        + """    longest, n, seconds = max(runs)
    return tokens * seconds / n * length / longest, 1e4
""",
    ),
    (
        "by the square of the length",
        _SAME,
        ((_ROWS, "rows = np.stack([np.ones_like(lengths), lengths**2], axis=1)"),),
    ),
    (
        "a power law of the length",
        _SAME,
        _HEAD
        + """    logs = np.log([(one, seconds / n) for one, n, seconds in runs])
    power, constant = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return float(tokens * np.exp(constant + power * np.log(length))), 1e4
""",
    ),
    (
        "seconds of a step, whatever its tokens",
        _SAME,
        ((_PER_TOKEN, "per_token = np.array([seconds for _, _, seconds in runs])"), (_RETURN, "    return alone + per_length * length, alone / per_length\n")),
    ),
    (
        "without the part that does not grow",
        _SAME,
        ((_RETURN, "    return tokens * per_length * length, alone / per_length\n"),),
    ),
    ("the growing part over the other one", _EQUAL, ((_RETURN, "    return tokens * (alone + per_length * length), per_length / alone\n"),)),
    ("where the growing part is half of the other one", _EQUAL, ((_RETURN, "    return tokens * (alone + per_length * length), alone / per_length / 2\n"),)),
    ("one length for all models", _EQUAL, ((_RETURN, "    return tokens * (alone + per_length * length), 12_000.0\n"),)),
    (
        "a table of what is published",
        "of what was published",
        _HEAD
        + """    least = min(s / n for _, n, s in runs) * 1e6
    table = [(53.6, 96.7, 23600), (28.7, 129.3, 18600), (10.4, 17.78, 13000),
             (5.5, 20.89, 11500), (3.85, 7.446, 9500), (0.78, 6.435, 8700)]
    _, seconds, equal = min(table, key=lambda row: abs(row[0] / least - 1))
    return seconds, equal
""",
    ),
    ("seconds alone", "An answer is two numbers", ((_RETURN, "    return tokens * (alone + per_length * length)\n"),)),
    (
        "the published number itself",
        "dtcourse.simulator",
        _HEAD
        + """    from dtcourse.simulator.hardware import published

    rows = published("mpt_a100")["rows"]
    return next(row["iter_s"] for row in rows if row["seq"] == length), 1e4
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "a straight line, each run with its seconds",
        _HEAD
        + """    x = [one for one, _, _ in runs]
    y = [seconds / n for _, n, seconds in runs]
    slope, start = np.polyfit(x, y, 1).tolist()
    return [tokens * (start + slope * length), start / slope]
""",
    ),
    (
        "the line through the shortest and the longest run",
        _HEAD
        + """    (a, n, s), (b, m, t) = min(runs), max(runs)
    slope = (t / m - s / n) / (b - a)
    start = s / n - slope * a
    return tokens * (start + slope * length), start / slope
""",
    ),
]

NOTHING = [
    ("nothing", _HEAD + "    return None\n"),
    ("a second, and a thousand tokens", _HEAD + "    return 1.0, 1000.0\n"),
]
