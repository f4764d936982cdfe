"""Answers to diagnose_job: see test_exercises.py."""

MUTANTS = [
    ("never looks is never said", "what does the start load", (("if value is None and saved is not None:", "if False:"),)),
    ("an old one is never said", "what was saved last, or before that", (("            if value != saved:\n", "            if False:\n"),)),
    ("a skipped step is never said", "which step comes first", (("            if value != expected:\n", "            if False:\n"),)),
    ("a repeated step is a fault", "All is right there", (("            if value != expected:\n", "            if value != expected or value <= seen:\n"), ("            expected = value + 1\n", "            expected = value + 1\n            seen = max(seen, value)\n"), ("    start, saved, expected = None, None, None\n", "    start, saved, expected, seen = None, None, None, 0\n"))),
    ("the first start must load too", "All is right there", (("if value is None and saved is not None:", "if value is None:"),)),
    ("counted from one", "what does the start load", (('return "never looks", start', 'return "never looks", start + 1'),)),
    ("the end of the log", "which step comes first", (('return "skips a step", start', 'return "skips a step", log[-1][1]'),)),
    ("without the start", "which step comes first", (('return "skips a step", start', 'return "skips a step", None'),)),
    ("the first that was saved, not the last", "what was saved last", (("            saved = value\n", "            saved = value if saved is None else min(saved, value)\n"),)),
    ("the last step must be loaded", "All is right there", (("            expected = value + 1\n", "            expected = value + 1\n            saved = value\n"),)),
    ("a word alone", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    ("a start that finds nothing has not looked", "All is right there", (("if value is None and saved is not None:", "if value is None and start:"),)),
    ("the first start skips nothing", "which step comes first", (("if value != expected:\n                return \"skips", "if start and value != expected:\n                return \"skips"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "start by start",
        """
def diagnose_job(log):
    starts = [i for i, (what, _) in enumerate(log) if what == "start"] + [len(log)]
    for number in range(len(starts) - 1):
        events = log[starts[number] : starts[number + 1]]
        earlier = [step for what, step in log[: starts[number]] if what == "save"]
        loaded = next(step for what, step in events if what == "load")
        if loaded is None and earlier:
            return "never looks", number
        if earlier and loaded != earlier[-1]:
            return "loads an old one", number
        steps = [step for what, step in events if what == "step"]
        if steps and steps[0] != (loaded or 0) + 1:
            return "skips a step", number
    return "healthy", None
""",
    ),
    (
        "the skipped step by what is missing from the log",
        (
            (
                "            if value != expected:\n",
                "            if value > 1 and value - 1 != expected - 1:\n",
            ),
        ),
    ),
]

NOTHING = [
    ("all is well", '\ndef diagnose_job(log):\n    return "healthy", None\n'),
]
