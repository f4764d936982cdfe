"""Answers to choose_step: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_SEND = "send = 2 * (ranks - 1) * (latency + bucket * nbytes / ranks)"
_END = "end = max(end, last * backward) + send"

MUTANTS = [
    (
        "as many ranks as there are",
        "Would fewer ranks be faster",
        (
            (
                _RETURN,
                "    most = max(one[1] for one in found)\n    return min(one for one in found if one[1] == most)[1:]\n",
            ),
        ),
    ),
    (
        "one rank",
        "What does one rank more save",
        ((_RETURN, "    return min(one for one in found if one[1] == 1)[1:]\n"),),
    ),
    (
        "latency is forgotten",
        "what does a message cost",
        ((_SEND, _SEND.replace("latency + ", "")),),
    ),
    (
        "bytes are forgotten",
        "the best choice takes",
        ((_SEND, _SEND.replace(" + bucket * nbytes / ranks", "")),),
    ),
    (
        "a bucket per layer",
        "what does a message cost",
        ((_RETURN, "    return min(one for one in found if one[3] == 1)[1:]\n"),),
    ),
    (
        "one bucket",
        "the best choice takes",
        ((_RETURN, "    return min(one for one in found if one[3] == layers)[1:]\n"),),
    ),
    (
        "one sample at a time",
        "the best choice takes",
        ((_RETURN, "    return min(one for one in found if one[2] == 1)[1:]\n"),),
    ),
    (
        "every backward hides messages",
        "Which micro-batch's backward hides",
        (
            (
                _END,
                "end = max(end, last * backward) + send / (samples // (ranks * micro))",
            ),
        ),
    ),
    (
        "the lesson's own prediction, for one rank's whole part",
        "what fits",
        """
def choose_step(samples, most, fits, layers, launch, sample, latency, nbytes):
    def my_step(ranks, bucket):
        backward, end, pending = 2 * (launch + samples // ranks * sample), 0.0, 0
        for i in range(layers):
            pending += 1
            if pending >= bucket or i == layers - 1:
                end = max((i + 1) * backward, end) + 2 * (ranks - 1) * (latency + pending * nbytes / ranks)
                pending = 0
        return layers * backward / 2 + max(layers * backward, end)

    found = [
        (my_step(ranks, bucket), ranks, samples // ranks, bucket)
        for ranks in range(1, most + 1) if samples % ranks == 0
        for bucket in range(1, layers + 1) if layers % bucket == 0
    ]
    return min(found)[1:]
""",
    ),
    (
        "more than fits",
        "what fits",
        ((_RETURN, "    return min(found)[1], fits + 1, min(found)[3]\n"),),
    ),
    ("exchanged", "is not possible", ((_RETURN, "    return min(found)[:0:-1]\n"),)),
    (
        "the time, too",
        "a choice is (ranks, micro, bucket)",
        ((_RETURN, "    return min(found)\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_step(samples, most, fits, layers, launch, sample, latency, nbytes):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "the largest micro-batch is never the worse one",
        """
def choose_step(samples, most, fits, layers, launch, sample, latency, nbytes):
    best, choice = float("inf"), None
    for ranks in range(most, 0, -1):
        if samples % ranks:
            continue
        part = samples // ranks
        micro = max(m for m in range(1, min(part, fits) + 1) if part % m == 0)
        f = launch + micro * sample
        for bucket in range(layers, 0, -1):
            if layers % bucket:
                continue
            send = 2 * (ranks - 1) * (latency + bucket * nbytes / ranks)
            number = layers // bucket
            first = bucket * 2 * f
            end = max(layers * 2 * f + send, first + number * send)
            step = (part // micro - 1) * 3 * layers * f + layers * f + end
            if step < best:
                best, choice = step, (ranks, micro, bucket)
    return choice
""",
    ),
    ("a list", ((_RETURN, "    return list(min(found)[1:])\n"),)),
]
