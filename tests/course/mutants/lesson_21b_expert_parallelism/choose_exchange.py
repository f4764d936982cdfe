"""Answers to choose_exchange: see test_exercises.py."""

_FLAT = "flat = (p - g) * latency + b * (p - g) / p / between"
_FIRST = "first = (g - 1) * near + b * (g - 1) / g / inside"
_SECOND = "second = (nodes - 1) * latency + b * (nodes - 1) / nodes / between"

MUTANTS = [
    (
        "messages cost their bytes only",
        "what does each cost besides its bytes",
        (
            (_FLAT, "flat = b * (p - g) / p / between"),
            (_SECOND, "second = b * (nodes - 1) / nodes / between"),
        ),
    ),
    (
        "the step inside a node costs nothing",
        "the best choice takes",
        ((_FIRST, "first = 0.0"),),
    ),
    (
        "nothing overlaps",
        "what can a chunk's computing hide",
        (
            (
                "found.append((max(network, computed[-1]) + t, n, way))",
                "found.append((n * (t + c + t), n, way))",
            ),
        ),
    ),
    (
        "combines have a network of their own",
        "Which of them wait for each other on one",
        (
            ("network, computed = t, [t + c]", "network, back, computed = t, 0.0, [t + c]"),
            ("network = max(network, computed[-2]) + t", "back = max(back, computed[-2]) + t"),
            ("max(network, computed[-1]) + t, n, way", "max(back, computed[-1]) + t, n, way"),
        ),
    ),
    (
        "chunks have no overhead",
        "in messages and in overhead",
        (("compute / n + overhead", "compute / n"),),
    ),
    (
        "flat, always",
        "How many messages to other nodes",
        ((', ("hierarchical", first + second))', ",)"),),
    ),
    (
        "in two steps, always",
        "What does the second step cost",
        (
            (
                '(("flat", flat), ("hierarchical", first + second))',
                '(("hierarchical", first + second),)',
            ),
        ),
    ),
    (
        "as many chunks as there may be",
        "the best choice takes",
        (("range(1, most + 1)", "range(most, most + 1)"),),
    ),
    (
        "one chunk",
        "the best choice takes",
        (("range(1, most + 1)", "range(1, 2)"),),
    ),
    (
        "one chunk too many",
        "chunks are possible",
        (("    return way, n\n", "    return way, most + 1\n"),),
    ),
    (
        "way and number exchanged",
        "a choice is (way, n)",
        (("    return way, n\n", "    return n, way\n"),),
    ),
    (
        "with its seconds",
        "a choice is (way, n)",
        (("    return way, n\n", "    return min(found)\n"),),
    ),
    (
        "the longest",
        "the best choice takes",
        (("_, n, way = min(found)", "_, n, way = max(found)"),),
    ),
]

ACCEPTED = [
    (
        "the first number of chunks that is within half a percent of the best",
        (
            (
                "    _, n, way = min(found)\n",
                "    least = min(found)[0]\n"
                "    _, n, way = next(one for one in sorted(found, key=lambda one: one[1]) if one[0] <= 1.005 * least)\n",
            ),
        ),
    ),
    (
        "all operations in a list, two clocks",
        """
def choose_exchange(nbytes, compute, overhead, nodes, g, near, latency, inside, between, most):
    def ready(way, n):
        b, p = nbytes / n, nodes * g
        t = (p - g) * (latency + b / p / between)
        if way == "hierarchical":
            t = (g - 1) * (near + b / g / inside) + (nodes - 1) * (latency + b / nodes / between)
        clock, device, done = 0.0, 0.0, {}
        for i in range(n + 1):
            if i < n:
                clock += t
                device = done[i] = max(device, clock) + compute / n + overhead
            if i:
                clock = max(clock, done[i - 1]) + t
        return clock

    choices = [(way, n) for n in range(1, most + 1) for way in ("hierarchical", "flat")]
    return min(choices, key=lambda choice: ready(*choice))
""",
    ),
]

NOTHING = [
    (
        "flat and whole",
        '\ndef choose_exchange(nbytes, compute, overhead, nodes, g, near, latency, inside, between, most):\n    return "flat", 1\n',
    ),
    (
        "in two steps, and as many chunks as there may be",
        '\ndef choose_exchange(nbytes, compute, overhead, nodes, g, near, latency, inside, between, most):\n    return "hierarchical", most\n',
    ),
]
