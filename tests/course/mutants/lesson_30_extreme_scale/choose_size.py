"""Answers to choose_size: see test_exercises.py."""

_HEAD = "\ndef choose_size(measure, sizes, batches, deadline):\n"
_IN_TIME = "is it in time"
_COST = "the best choice takes"
_ANY = "A training that has to end within"  # too late or too dear, as the job is
_IF = "        if days(devices, at) <= deadline:\n            return devices, batches[at]\n"
_END = "    return sizes[-1], batches[at]\n"
_LOOP = "    for devices in sizes:\n"
_NEAR = "near = [place for place in (at - 1, at, at + 1) if 0 <= place < len(batches)]"

MUTANTS = [
    (
        "the quickest, whatever it costs",
        _COST,
        (
            (_IF, "        days(devices, at)\n"),
            (_LOOP, "    for devices in sizes[-4:]:\n"),
            (
                _END,
                "    devices, at = min(seen, key=seen.get)\n    return devices, batches[at]\n",
            ),
        ),
    ),
    ("as many devices as there are", _COST, ((_LOOP, "    for devices in sizes[-1:]:\n"),)),
    (
        "the fewest devices",
        _IN_TIME,
        ((_IF, "        return devices, batches[at]\n"),),
    ),
    (
        "one batch for all sizes: the one in the middle",
        _ANY,
        ((_NEAR, "near = [at]"),),
    ),
    (
        "the largest batch for all sizes",
        _ANY,
        ((_NEAR, "near = [len(batches) - 1]"),),
    ),
    (
        "the smallest batch for all sizes",
        _ANY,
        ((_NEAR, "near = [0]"),),
    ),
    (
        "the batch that is best for the fewest devices",
        _ANY,
        (
            (
                _NEAR,
                "near = [p for p in (at - 1, at, at + 1) if 0 <= p < len(batches)]\n"
                "            near = near if devices == sizes[0] else [at]",
            ),
        ),
    ),
    (
        "twice as many devices as needed, to be sure",
        _COST,
        (
            (
                _IF,
                "        if days(devices, at) <= deadline / 1.5:\n            return devices, batches[at]\n",
            ),
        ),
    ),
    (
        "half of the sizes and of the batches",
        _ANY,
        _HEAD
        + """    tried = {(n, b): measure(n, b)[0] for n in sizes[::2] for b in batches[1:5]}
    in_time = {one: n for one, n in tried.items() if n <= deadline} or tried
    return min(in_time, key=lambda one: one[0] * in_time[one])
""",
    ),
    (
        "the middle of the table",
        _ANY,
        _HEAD
        + """    tried = {(n, b): measure(n, b)[0] for n in sizes[1:6] for b in batches[2:7]}
    in_time = {one: n for one, n in tried.items() if n <= deadline} or tried
    return min(in_time, key=lambda one: one[0] * in_time[one])
""",
    ),
    (
        "everything is measured",
        "no more may be",
        _HEAD
        + """    tried = {(n, b): measure(n, b)[0] for n in sizes for b in batches}
    in_time = {one: n for one, n in tried.items() if n <= deadline}
    return min(in_time, key=lambda one: one[0] * in_time[one])
""",
    ),
    ("a batch that is not there", "is not possible", ((_IF, _IF.replace("batches[at]", "batches[at] + 1")),)),
    ("exchanged", "is not possible", ((_IF, _IF.replace("devices, batches[at]\n", "batches[at], devices\n")),)),
    ("no batch is named", "a choice is 2 things", _HEAD + "    return sizes[3]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "the size by halves, and for each the batch by walking, as a list",
        _HEAD
        + """    known = {}

    def days(n, b):
        if (n, b) not in known:
            known[n, b] = measure(sizes[n], batches[b])[0]
        return known[n, b]

    def best(n):
        at = len(batches) // 2
        while at + 1 < len(batches) and days(n, at + 1) < days(n, at):
            at += 1
        while at and days(n, at - 1) < days(n, at):
            at -= 1
        return at

    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        if days(middle, best(middle)) <= deadline:
            high = middle
        else:
            low = middle + 1
    return [sizes[low], batches[best(low)]]
""",
    ),
    (
        "the batch by thirds, for one size after the other",
        _HEAD
        + """    from functools import cache

    @cache
    def days(devices, at):
        return measure(devices, batches[at])[0]

    def best(devices, low, high):
        while low < high:
            middle = (low + high) // 2
            if days(devices, middle) <= days(devices, middle + 1):
                high = middle
            else:
                low = middle + 1
        return low

    low, high = 0, len(batches) - 1
    for devices in sizes:
        low = best(devices, low, high)  # the best batch never falls with the devices
        if days(devices, low) <= deadline:
            break
        high = min(len(batches) - 1, low + 2)
    return devices, batches[low]
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the first choice that there is", _HEAD + "    return sizes[0], batches[0]\n"),
]
