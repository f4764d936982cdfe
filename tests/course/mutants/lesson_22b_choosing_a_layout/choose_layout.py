"""Answers to choose_layout: see test_exercises.py."""

_RETURN = "return min(found)[1:]"
_ROOM = "                if most > room:\n                    continue\n"
_INNER = "inner = p == 1 or apart[axis] * p <= 4"
_MOST = "most = layers * (states + min(pp, micro) * samples * kept) / tp"
_COMPUTE = "compute = launch + samples * sample / tp"

_PLAYED = """                done, now = {}, [0.0] * pp
                while any(waiting):
                    for stage in (s for s in range(pp) if waiting[s]):
                        back, i = waiting[stage][0]
                        source = stage + 1 if back else stage - 1
                        start = now[stage]
                        if 0 <= source < pp:
                            if (back, i, source) not in done:
                                continue
                            start = max(start, done[back, i, source] + transfer(source, stage))
                        now[stage] = done[back, i, stage] = start + took[back]
                        del waiting[stage][0]
"""
_ASKED = """                @functools.cache
                def end(back, i, stage):
                    place = waiting[stage].index((back, i))
                    start = end(*waiting[stage][place - 1], stage) if place else 0.0
                    source = stage + 1 if back else stage - 1
                    if 0 <= source < pp:
                        start = max(start, end(back, i, source) + transfer(source, stage))
                    return start + took[back]

                now = [end(*actions[-1], stage) for stage, actions in enumerate(waiting)]
"""

MUTANTS = [
    (
        "the largest tp, innermost, in every job",
        "which of them cross between the nodes in each order",
        ((_RETURN, 'return min(one for one in found if one[4].endswith("tp"))[1:]'),),
    ),
    (
        "whatever fits or not",
        "the fullest rank holds",
        ((_ROOM, ""),),
    ),
    (
        "what layers keep takes no room",
        "of how many micro-batches does the first stage keep",
        ((_MOST, "most = layers * states / tp"),),
    ),
    (
        "all links are those of a node",
        "the best choice takes",
        ((_INNER, "inner = True"),),
    ),
    (
        "a launch costs nothing",
        "What does one micro-batch more save, and what does it cost",
        ((_COMPUTE, "compute = samples * sample / tp"), ("latency + nbytes / p /", "nbytes / p /")),
    ),
    (
        "the innermost axis counts first in the order",
        "the best choice takes",
        (('" ".join(order),', '" ".join(reversed(order)),'),),
    ),
    (
        "one micro-batch",
        "the best choice takes",
        (("for micro in (m for m in (1, 2, 4, 8) if m * dp <= 8)", "for micro in (1,)"),),
    ),
    (
        "the time, too",
        "a choice is (dp, pp, tp, order, micro)",
        ((_RETURN, "return min(found)"),),
    ),
    (
        "the package's own search",
        "the answer uses dtcourse.simulator",
        (
            (
                "    found = []\n",
                "    from dtcourse.simulator import rank_order\n\n    rank_order.orders\n    found = []\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "one layout for all",
        "\ndef choose_layout(launch, sample, weights, states, passed, kept, latency, inside, between, room):\n"
        '    return 2, 2, 2, "pp dp tp", 4\n',
    ),
]

ACCEPTED = [
    ("a list", ((_RETURN, "return list(min(found)[1:])"),)),
    (
        "backwards from the last action of each stage",
        (
            ("    found = []\n", "    import functools\n\n    found = []\n"),
            (_PLAYED, _ASKED),
        ),
    ),
    (
        "the fewest micro-batches within half a percent",
        ((_RETURN, "return min(f for f in found if f[0] <= 1.005 * min(found)[0])[1:]"),),
    ),
]
