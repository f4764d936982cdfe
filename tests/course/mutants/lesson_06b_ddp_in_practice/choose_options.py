"""Answers to choose_options: see test_exercises.py."""

_OPTIONS = 'for option in ("none", "static_graph", "find_unused_parameters")'
_SIZES = "for size in (1, 2, 3, 6))"
_FITS = "if size <= room)"

MUTANTS = [
    (
        "find_unused_parameters, to be safe",
        "What does each option send that nobody needs here",
        ((_OPTIONS, 'for option in ("find_unused_parameters",)'),),
    ),
    (
        "static_graph, since most jobs' steps are alike",
        "What does each option send that nobody needs here",
        ((_OPTIONS, 'for option in ("static_graph",)'),),
    ),
    (
        "errors are not looked at",
        "what has DDP been told of it",
        (("if error < 1e-5:", "if True:"),),
    ),
    (
        "find_unused_parameters wherever something is unused",
        "What does each option send in the second and the third step",
        ((_OPTIONS, 'for option in ("none", "find_unused_parameters")'),),
    ),
    (
        "a bucket per layer",
        "what does a larger micro-batch or bucket save",
        ((_SIZES, "for size in (1,))"),),
    ),
    ("one bucket", "the best choice takes", ((_SIZES, "for size in (6,))"),)),
    (
        "memory is not looked at",
        "are held at once",
        ((_FITS, "if size)"),),
    ),
    (
        "the smallest micro-batches",
        "what does a larger micro-batch or bucket save",
        (("micro = max(", "micro = min("),),
    ),
    (
        "all choices are measured",
        "and no more may be",
        """
def choose_options(measure, room):
    found = []
    for micro in (2, 4, 8):
        for bucket in (1, 2, 3, 6):
            for option in ("none", "static_graph", "find_unused_parameters"):
                seconds, held, error = measure(micro, bucket, option)
                if held <= room and error < 1e-5:
                    found.append((seconds, (micro, bucket, option)))
    return min(found)[1]
""",
    ),
    (
        "no option, as many scripts have it",
        "what has DDP been told of it",
        """
def choose_options(measure, room):
    micro = max(size for size in (2, 4, 8) if size <= room)
    return micro, min((1, 2, 3, 6), key=lambda size: measure(micro, size, "none")), "none"
""",
    ),
    (
        "the lesson's default bucket",
        "the best choice takes",
        """
def choose_options(measure, room):
    micro = max(size for size in (2, 4, 8) if size <= room)
    options = ("none", "static_graph", "find_unused_parameters")
    found = {option: measure(micro, 6, option) for option in options}
    return micro, 6, min((o for o in options if found[o][2] < 1e-5), key=lambda o: found[o][0])
""",
    ),
]

NOTHING = [
    (
        "nothing measured",
        """
def choose_options(measure, room):
    return 2, 1, "none"
""",
    ),
]

ACCEPTED = [
    (
        "options first, at the largest bucket; buckets from the largest down, until it gets worse",
        """
def choose_options(measure, room):
    micro = 8
    while micro > room:
        micro //= 2
    options = ["none", "static_graph", "find_unused_parameters"]
    right = [o for o in options if measure(micro, 6, o)[2] == 0.0]
    best, option = min((measure(micro, 6, o)[0], o) for o in right)
    bucket = 6
    for smaller in (3, 2, 1):
        seconds = measure(micro, smaller, option)[0]
        if seconds > best:
            break
        best, bucket = seconds, smaller
    return [micro, bucket, option]
""",
    ),
    (
        "the first option that is right, and all buckets with it",
        """
def choose_options(measure, room):
    micro = {True: 8}.get(room >= 8, 4 if room >= 4 else 2)
    for option in ("none", "static_graph", "find_unused_parameters"):
        tried = {bucket: measure(micro, bucket, option) for bucket in (6,)}
        if tried[6][2] < 1e-5:
            tried |= {bucket: measure(micro, bucket, option) for bucket in (3, 2, 1)}
            return micro, min(tried, key=lambda bucket: tried[bucket][0]), option
""",
    ),
]
