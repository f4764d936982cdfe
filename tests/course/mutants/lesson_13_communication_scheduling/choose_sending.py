"""Answers to choose_sending: see test_exercises.py."""

_RETURN = "    _, wait_in, n = min(found)\n    return wait_in, n\n"
_BUCKET = "free = max(free, last * b) + message + n * nbytes"
_SLICE = "free += message + nbytes / n"

MUTANTS = [
    (
        "messages cost their bytes only",
        "what does each cost",
        ((_BUCKET, _BUCKET.replace("message + ", "")), (_SLICE, "free += nbytes / n")),
    ),
    ("slices cost their bytes only", "the best choice takes", ((_SLICE, "free += nbytes / n"),)),
    (
        "always a wait in backward",
        "What does the next forward wait for",
        (
            (
                _RETURN,
                '    _, wait_in, n = min(one for one in found if one[1] == "backward")\n    return wait_in, n\n',
            ),
        ),
    ),
    (
        "always by priority",
        "How many messages does each choice send",
        (
            (
                _RETURN,
                '    _, wait_in, n = min(one for one in found if one[1] == "forward")\n    return wait_in, n\n',
            ),
        ),
    ),
    (
        "as many slices as there may be",
        "the best choice takes",
        (("for n in range(1, most + 1):", "for n in range(most, most + 1):"),),
    ),
    (
        "whole layers only",
        "the best choice takes",
        (("for n in range(1, most + 1):", "for n in range(1, 2):"),),
    ),
    (
        "the wait in forward is for everything",
        "What does the next forward wait for",
        (("        now = layers * b\n", "        now = max(there)\n"),),
    ),
    (
        "one bucket of everything",
        "the best choice takes",
        ((_RETURN, '    return "backward", layers\n'),),
    ),
    ("one slice too many", "is not possible", ((_RETURN, '    return "forward", most + 1\n'),)),
    (
        "buckets that do not divide the layers",
        "is not possible",
        ((_RETURN, '    return "backward", layers - 1\n'),),
    ),
    ("exchanged", "a choice is (wait_in, n)", ((_RETURN, "    return min(found)[:0:-1]\n"),)),
    ("with its seconds", "a choice is (wait_in, n)", ((_RETURN, "    return min(found)\n"),)),
    ("the longest", "the best choice takes", (("min(found)", "max(found)"),)),
]

ACCEPTED = [
    (
        "the smallest number that is within half a percent of the best",
        (
            (
                _RETURN,
                "    least = min(found)[0]\n"
                "    _, wait_in, n = min((one for one in found if one[0] <= 1.005 * least), key=lambda one: one[2])\n"
                "    return wait_in, n\n",
            ),
        ),
    ),
    (
        "a heap, and time by events",
        """
import heapq


def choose_sending(layers, f, b, message, nbytes, most):
    def by_priority(n):
        coming = [(k * b, layers - k) for k in range(1, layers + 1)]
        queue, free, arrived = [], 0.0, {}
        while coming or queue:
            if not queue and coming[0][0] > free:
                free = coming[0][0]
            while coming and coming[0][0] <= free + 1e-12:
                layer = coming.pop(0)[1]
                for part in range(n):
                    heapq.heappush(queue, (layer, part))
            layer, _ = heapq.heappop(queue)
            free += message + nbytes / n
            arrived[layer] = free
        clock = layers * b
        for layer in range(layers):
            clock = max(clock, arrived[layer]) + f
        return clock

    def in_buckets(n):
        clock = 0.0
        for k in range(1, layers // n + 1):
            clock = max(clock, k * n * b) + message + n * nbytes
        return clock + layers * f

    seconds = {("forward", n): by_priority(n) for n in range(1, most + 1)}
    seconds |= {("backward", n): in_buckets(n) for n in range(1, layers + 1) if layers % n == 0}
    return min(seconds, key=seconds.get)
""",
    ),
]

NOTHING = [
    (
        "a bucket per layer",
        '\ndef choose_sending(layers, f, b, message, nbytes, most):\n    return "backward", 1\n',
    ),
    (
        "whole layers by priority",
        '\ndef choose_sending(layers, f, b, message, nbytes, most):\n    return "forward", 1\n',
    ),
]
