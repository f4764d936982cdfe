"""Answers to choose_degrees: see test_exercises.py."""

_EXCHANGE = "exchange_bandwidth = inside if node % u == 0 else between"
_RING = "ring_bandwidth = inside if p <= node else between"
_TIME = "exchange + (r - 1) * max(block, transfer) + block"

MUTANTS = [
    (
        "messages cost their bytes only",
        "what does each message cost besides its bytes",
        (
            ("exchange = 4 * (u - 1) * latency + ", "exchange = "),
            ("transfer = latency + ", "transfer = "),
        ),
    ),
    (
        "keys and values are sent once, whatever u is",
        "are bytes as well",
        (("r, kv = p // u, max(kv_heads, u)", "r, kv = p // u, kv_heads"),),
    ),
    (
        "transfers are never hidden",
        "transfers are hidden where a block takes longer",
        ((_TIME, "exchange + (r - 1) * (block + transfer) + block"),),
    ),
    (
        "the exchange is hidden behind the ring",
        "the exchange never is",
        ((_TIME, "max(exchange, (r - 1) * max(block, transfer) + block)"),),
    ),
    (
        "all links are those of a node",
        "Which of the two goes over which link",
        ((_EXCHANGE, "exchange_bandwidth = inside"), (_RING, "ring_bandwidth = inside")),
    ),
    (
        "the ring has the node's links, the exchange the others",
        "Which of the two goes over which link",
        ((_EXCHANGE, "exchange_bandwidth = between"), (_RING, "ring_bandwidth = inside")),
    ),
    (
        "any u that divides the ranks",
        "the heads do not go into",
        (
            (" and heads % u == 0)", ")"),
            ("        if kv_heads % u and u % kv_heads:\n            continue\n", ""),
        ),
    ),
    (
        "the longest",
        "the best choice takes",
        (("return min(found)[1:]", "return max(found)[1:]"),),
    ),
    (
        "r and u exchanged",
        "the best choice takes",
        (("block, u, r))", "block, r, u))"),),
    ),
    (
        "with its seconds",
        "a choice is (u, r)",
        (("return min(found)[1:]", "return min(found)"),),
    ),
    (
        "as many heads exchanged as a node has ranks, without a look at the time",
        "the best choice takes",
        (
            (
                "return min(found)[1:]",
                "return max((u, r) for _, u, r in found if node % u == 0)",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "exchanges inside a node only",
        ((" and heads % u == 0)", " and heads % u == 0 and node % u == 0)"),),
    ),
    (
        "by r, the best kept on the way, within half a percent",
        (
            ("    found = []\n", "    found, best = None, float('inf')\n"),
            (
                "for u in (u for u in range(1, p + 1)",
                "for u in (p // r for r in range(1, p + 1) if p % r == 0 for u in [p // r]",
            ),
            (
                "        found.append((exchange + (r - 1) * max(block, transfer) + block, u, r))\n    return min(found)[1:]",
                "        seconds = exchange + block + sum(max(block, transfer) for _ in range(1, r))\n"
                "        if seconds < 0.995 * best:\n            found, best = (u, r), seconds\n    return found",
            ),
        ),
    ),
]

NOTHING = [
    (
        "the ring alone",
        "\ndef choose_degrees(tokens, heads, kv_heads, dim, p, node, speed, inside, between, latency):\n    return 1, p\n",
    ),
    (
        "Ulysses alone",
        "\ndef choose_degrees(tokens, heads, kv_heads, dim, p, node, speed, inside, between, latency):\n    return p, 1\n",
    ),
]
