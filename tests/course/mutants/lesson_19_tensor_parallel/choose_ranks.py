"""Answers to choose_ranks: see test_exercises.py."""

_FITS = "if states + activations <= memory and step <= limit:"

MUTANTS = [
    (
        "activations take no memory",
        "Does your memory count the activations",
        ((_FITS, "if states <= memory and step <= limit:"),),
    ),
    (
        "all activations are cut",
        "the part of them that every rank holds whole",
        (("(10 + 24 / p)", "34 / p"),),
    ),
    (
        "any memory will do",
        "Does your memory count the activations",
        ((_FITS, "if step <= limit:"),),
    ),
    (
        "any time will do",
        "above the limit",
        ((_FITS, "if states + activations <= memory:"),),
    ),
    (
        "nothing is hidden",
        "What hides behind a weight gradient",
        (
            (
                "step = layers * (36 * product + 2 * reduce + backward)",
                "step = layers * (36 * product + 4 * reduce)",
            ),
        ),
    ),
    (
        "everything is hidden",
        "which is above the limit",
        (
            (
                "step = layers * (36 * product + 2 * reduce + backward)",
                "step = layers * 36 * product",
            ),
        ),
    ),
    (
        "one kind of links",
        "Which links do rings over two nodes use",
        (("inside if p <= node else min(inside, node * between)", "inside"),),
    ),
    (
        "one ring, through one card of a node",
        "How many cards does a node",
        (("min(inside, node * between)", "between"),),
    ),
    (
        "messages have no latency",
        "what do their 2 (p - 1) steps cost",
        (("2 * (p - 1) * latency + ", ""),),
    ),
    (
        "the fastest step",
        "GPU seconds per step",
        (("found.append((p * step, p))", "found.append((step, p))"),),
    ),
    (
        "as many as there are heads",
        "GPU seconds per step",
        (("return min(found)[1] if found else None", "return max(found)[1] if found else None"),),
    ),
    (
        "heads do not matter",
        "equally",
        (("(p for p in range(1, heads + 1) if heads % p == 0)", "range(1, 129)"),),
    ),
    (
        "an error where nothing does",
        "raised ValueError",
        (("return min(found)[1] if found else None", "return min(found)[1]"),),
    ),
]

NOTHING = [
    ("always 8", "\ndef choose_ranks(*cluster):\n    return 8\n"),
    ("always None", "\ndef choose_ranks(*cluster):\n    return None\n"),
]

ACCEPTED = [
    (
        "the fewest ranks that do: more cost more",
        (("return min(found)[1] if found else None", "return found[0][1] if found else None"),),
    ),
    (
        "seconds of backward, step by step",
        (
            (
                "        backward = max(0, reduce - 3 * product) + max(0, reduce - 4 * product)\n"
                "        step = layers * (36 * product + 2 * reduce + backward)\n",
                "        forward = 12 * product + 2 * reduce\n"
                "        weights = [max(beside * product, reduce) for beside in (3, 4)]\n"
                "        step = layers * (forward + 17 * product + sum(weights))\n",
            ),
        ),
    ),
]
