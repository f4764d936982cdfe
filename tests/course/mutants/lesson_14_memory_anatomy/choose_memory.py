"""Answers to choose_memory: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_STATES = "12 * parameters // (ranks if sharded else 1)"


def _only(which: str) -> tuple[tuple[str, str], ...]:
    """The best of some choices."""
    return ((_RETURN, f"    return min(one for one in found if {which})[1:]\n"),)


MUTANTS = [
    (
        "always sharded",
        "What has to be given up here at all",
        _only("one[3]"),
    ),
    (
        "never sharded",
        "What does sharding make room for",
        (
            (
                _RETURN,
                "    whole = [one for one in found if not one[3]]\n    return min(whole or found)[1:]\n",
            ),
        ),
    ),
    (
        "never recomputed",
        "what do some layers computed again",
        _only("one[2] == 0"),
    ),
    (
        "all recomputed",
        "What has to be given up here at all",
        _only("one[2] == layers"),
    ),
    (
        "all or none recomputed",
        "Must all of them be",
        _only("one[2] in (0, layers)"),
    ),
    (
        "one sample at a time",
        "What has to be given up here at all",
        _only("one[1] == 1"),
    ),
    (
        "the largest micro-batch that fits somehow",
        "What do more launches cost",
        _only("one[1] == max(other[1] for other in found)"),
    ),
    (
        "what is just being recomputed takes nothing",
        "what does the layer that is recomputed just now take",
        (("                activations += kept\n", "                pass\n"),),
    ),
    (
        "everything is sharded",
        "Which states does every rank still hold in full",
        (
            (
                "4 * parameters + " + _STATES,
                "16 * parameters // (ranks if sharded else 1)",
            ),
        ),
    ),
    (
        "recomputing costs nothing",
        "the best choice takes",
        (("(3 * layers + recomputed) * forward", "3 * layers * forward"),),
    ),
    (
        "launches cost nothing",
        "the best choice takes",
        (("forward = launch + micro * compute", "forward = micro * compute"),),
    ),
    (
        "sharding costs nothing",
        "What has to be given up here at all",
        (
            ("step += gather if sharded else 0", "step += 0"),
            (_RETURN, "    return min(found, key=lambda one: (one[0], -one[3]))[1:]\n"),
        ),
    ),
    (
        "one sample more than that",
        "is not possible",
        ((_RETURN, "    best = min(found)\n    return samples + 1, best[2], best[3]\n"),),
    ),
    (
        "the time, too",
        "a choice is (micro, recomputed, sharded)",
        ((_RETURN, "    return min(found)\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_memory(capacity, parameters, ranks, samples, layers, kept, entry, launch, compute, gather):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "the fewest layers that make it fit",
        """
def choose_memory(capacity, parameters, ranks, samples, layers, kept, entry, launch, compute, gather):
    best, choice = float("inf"), None
    for sharded in (True, False):
        room = capacity - 4 * parameters - 12 * parameters // (ranks if sharded else 1)
        for micro in range(samples, 0, -1):
            if samples % micro:
                continue
            per = room // micro
            if per >= layers * kept:
                again = 0
            else:
                again = -(-((layers + 1) * kept - per) // (kept - entry))
            if again > layers:
                continue
            step = samples // micro * (3 * layers + again) * (launch + micro * compute) + gather * sharded
            if step < best:
                best, choice = step, [micro, again, sharded]
    return choice
""",
    ),
    (
        "from all triples",
        """
def choose_memory(capacity, parameters, ranks, samples, layers, kept, entry, launch, compute, gather):
    import itertools

    def need(micro, again, sharded):
        states = parameters * 4 + (parameters * 12 // ranks if sharded else parameters * 12)
        return states + micro * (kept * (layers - again + (again > 0)) + entry * again)

    def time(choice):
        micro, again, sharded = choice
        return (samples / micro) * (layers * 3 + again) * (launch + compute * micro) + gather * sharded

    micros = [n for n in range(1, samples + 1) if not samples % n]
    every = itertools.product(micros, range(layers + 1), (False, True))
    return min((one for one in every if need(*one) <= capacity), key=time)
""",
    ),
]
