"""Answers to choose_low_ranks: see test_exercises.py."""

_HEAD = "\ndef choose_low_ranks(measure, spectra, shapes, options, allowed):\n"
_GAIN = "What does one rank more gain in each matrix"
_BESIDE = "What does a matrix cost that does not travel whole"
_LEFT = "Of what is the sum taken"
_END = "    return min(found, key=lambda one: one[0])[1]\n"
_NUMBERS = "sum(n * m if r == 'whole' else r * (n + m) for r, (n, m) in zip(choice, shapes))"

MUTANTS = [
    (
        "the same rank for all",
        _GAIN,
        _HEAD
        + """    tried = [(measure(r, r, r), r) for r in options]
    return min((seconds, [r] * 3) for (seconds, left), r in tried if left <= allowed)[1]
""",
    ),
    ("all of them whole", _GAIN, _HEAD + '    return ("whole",) * 3\n'),
    (
        "as few numbers as possible, and nothing is measured",
        _BESIDE,
        _HEAD
        + f"""    squares = [values.square() for values in spectra]
    least = 0.97 * allowed * sum(float(s.sum()) for s in squares)
    enough = []
    for choice in product(options, repeat=3):
        if sum(float(s[r:].sum()) for s, r in zip(squares, choice) if r != "whole") <= least:
            enough.append(({_NUMBERS}, choice))
    return min(enough, key=lambda one: one[0])[1]
""",
    ),
    ("no matrix travels whole", _BESIDE, (("    for choice in product(options, repeat=3):\n", "    for choice in product(options[:-1], repeat=3):\n"),)),
    ("the lesson's rank 2", _LEFT, _HEAD + "    return 2, 2, 2\n"),
    ("errors that are not squared", _LEFT, (("squares = [values.square() for values in spectra]", "squares = [values for values in spectra]"), ("        if left <= allowed:\n", "        if True:\n"), ("if left <= allowed * length:", "if left <= 3 * allowed * length:"))),
    ("one rank too few", _LEFT, ((_END, "    return [{4: 2, 8: 4}.get(r, r) for r in min(found, key=lambda one: one[0])[1]][:2] + [1]\n"),)),
    ("one rank too many", _GAIN, ((_END, "    return [{2: 4, 4: 8, 8: 'whole'}.get(r, r) for r in min(found, key=lambda one: one[0])[1]]\n"),)),
    ("the slowest", _GAIN, ((_END, "    return max(found, key=lambda one: one[0])[1]\n"),)),
    ("in the order from the last", _LEFT, ((_END, "    return min(found, key=lambda one: one[0])[1][::-1]\n"),)),
    (
        "everything is measured",
        "no more may be",
        _HEAD
        + """    every = [(measure(*choice), choice) for choice in product(options, repeat=3)]
    return min((seconds, choice) for (seconds, left), choice in every if left <= allowed)[1]
""",
    ),
    ("rank 3", "is possible", _HEAD + "    return 3, 4, 8\n"),
    ("one rank", "a choice is 3 things", ((_END, "    return options[0]\n"),)),
    ("ready-made", "asks you to write that yourself", "from dtcourse.compression import PowerSGDState\n" + _HEAD + "    return PowerSGDState(2)\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "whichever go whole, the fewest numbers of the others, as a list",
        _HEAD
        + f"""    squares = [values.square() for values in spectra]
    most = 0.99 * allowed * sum(float(s.sum()) for s in squares)
    fewest = {{}}
    for choice in product(options, repeat=3):
        if sum(float(s[r:].sum()) for s, r in zip(squares, choice) if r != "whole") <= most:
            numbers = {_NUMBERS}
            which = tuple(r == "whole" for r in choice)
            if numbers < fewest.get(which, (float("inf"),))[0]:
                fewest[which] = numbers, choice
    found = []
    for numbers, choice in fewest.values():
        seconds, left = measure(*choice)
        if left <= allowed:
            found.append((seconds, numbers, choice))
    return list(min(found, key=lambda one: one[0])[2])
""",
    ),
    (
        "by the error that is measured, from few numbers to many, and the same with matrices whole",
        _HEAD
        + f"""    squares = [values.square() for values in spectra]
    every = sorted(product(options, repeat=3), key=lambda choice: {_NUMBERS})

    def left_by(choice):
        return sum(float(s[r:].sum()) for s, r in zip(squares, choice) if r != "whole")

    most = allowed * sum(float(s.sum()) for s in squares)
    few = [choice for choice in every if left_by(choice) <= most][:4]
    first = few[0]
    few += [("whole", *first[1:]), (first[0], "whole", first[2]), (first[0], "whole", "whole"), ("whole",) * 3]
    found = []
    for at, choice in enumerate(few):
        seconds, left = measure(*choice)
        if left <= allowed:
            found.append((seconds, at))
    return few[min(found)[1]]
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
]
