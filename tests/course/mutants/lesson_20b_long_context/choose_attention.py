"""Answers to choose_attention: see test_exercises.py."""

_TRIED = 'tried = [("ring", "zigzag"), waiting]'
_GATHER = "gather = 2 * 3 * 2 * kv_heads / heads"
_HEADER = "def choose_attention(measure, tokens, heads, kv_heads):\n"

MUTANTS = [
    (
        "the ring in contiguous order",
        "Which rank computes longest",
        ((_TRIED, 'tried = [("ring", "contiguous"), waiting]'),),
    ),
    (
        "only what does not hide is tried",
        "which messages travel while a rank computes",
        ((_TRIED, "tried = [waiting]"),),
    ),
    (
        "the ring or Ulysses",
        "what does each way send in backward",
        ((_TRIED, 'tried = [("ring", "zigzag"), ("Ulysses", "contiguous")]'),),
    ),
    (
        "the ring or gathering",
        "How many bytes does each way send",
        ((_TRIED, 'tried = [("ring", "zigzag"), ("gather", "zigzag")]'),),
    ),
    (
        "gathers in contiguous order",
        "what does each way send in backward",
        (('("gather", "zigzag") if', '("gather", "contiguous") if'),),
    ),
    (
        "the slowest of what was tried",
        "Which rank computes longest",
        (("min(tried", "max(tried"),),
    ),
    (
        "Ulysses in zig-zag order",
        "is not possible",
        ((_TRIED, 'return "Ulysses", "zigzag"'),),
    ),
    (
        "a way without an order",
        "a choice is 2 things",
        ((_TRIED, 'return ("ring",)'),),
    ),
    (
        "tries all",
        "no more may be",
        (
            (
                _TRIED,
                'tried = [("Ulysses", "contiguous"), ("ring", "zigzag"), ("gather", "zigzag")]',
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "measures the ring first, and another way only where messages count",
        (
            (
                "    return min(tried, key=lambda choice: measure(*choice))\n",
                "    seconds = {choice: measure(*choice)[0] for choice in reversed(tried)}\n"
                "    return min(seconds, key=seconds.get)\n",
            ),
        ),
    ),
    (
        "gathers where a key-value head serves more than two query heads",
        (("if gather < ulysses else", "if heads > 2 * kv_heads else"),),
    ),
]

NOTHING = [
    ("the ring", "\n" + _HEADER + '    return "ring", "contiguous"\n'),
    ("gathering", "\n" + _HEADER + '    return "gather", "contiguous"\n'),
]
