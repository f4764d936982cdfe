"""Answers to cut_a_chain: see test_exercises.py."""

MUTANTS = [
    (
        "segments of equally many layers",
        "how would you choose the cuts",
        """
def best_cuts(kept, inputs):
    n = len(kept)
    size = max(1, round(math.sqrt(n)))
    return list(range(0, n, size))
""",
    ),
    (
        "every layer a segment",
        "What is the square root",
        """
def best_cuts(kept, inputs):
    return list(range(len(kept)))
""",
    ),
    (
        "fills segments greedily",
        "how would you choose the cuts",
        """
def best_cuts(kept, inputs):
    best = None
    for limit in sorted({sum(kept[a:b]) for a in range(len(kept)) for b in range(a + 1, len(kept) + 1)}):
        if limit < max(kept):
            continue
        starts, size = [0], 0
        for i, own in enumerate(kept):
            if size + own > limit:
                starts.append(i)
                size = 0
            size += own
        peak = limit + sum(inputs[s] for s in starts)
        if best is None or peak < best[0]:
            best = peak, starts
    return best[1]
""",
    ),
    (
        "the end of each segment in place of its start",
        "the first layer of each segment",
        """
def best_cuts(kept, inputs):
    '''kept, inputs: bytes of each layer. Returns the first layers of the segments, rising, the first one 0.'''
    n = len(kept)
    before = [sum(kept[:i]) for i in range(n + 1)]
    best = (math.inf, [])
    for limit in {before[b] - before[a] for a in range(n) for b in range(a + 1, n + 1)}:
        # For the first i layers: the least bytes of inputs, and where its segments start.
        cheapest = [(0, [])] + [(math.inf, [])] * n
        for end in range(1, n + 1):
            for start in range(end):
                cost = cheapest[start][0] + inputs[start]
                if before[end] - before[start] <= limit and cost < cheapest[end][0]:
                    cheapest[end] = cost, [*cheapest[start][1], start]
        cost, starts = cheapest[n]
        best = min(best, (cost + limit, starts))
    return [*best[1][1:], len(kept)]
""",
    ),
]

NOTHING = [
    (
        "one segment",
        """
def best_cuts(kept, inputs):
    return [0]
""",
    ),
]

ACCEPTED = [
    (
        "from the end, with a memory",
        """
def best_cuts(kept, inputs):
    from functools import lru_cache
    n = len(kept)

    def cheapest(limit):
        @lru_cache(None)
        def rest(start):
            if start == n:
                return 0, ()
            options, total = [], 0
            for end in range(start + 1, n + 1):
                total += kept[end - 1]
                if total > limit:
                    break
                cost, starts = rest(end)
                options.append((cost + inputs[start], (start, *starts)))
            return min(options, default=(math.inf, ()))
        return rest(0)

    limits = {sum(kept[a:b]) for a in range(n) for b in range(a + 1, n + 1)}
    plans = [(limit + cost, starts) for limit in limits for cost, starts in [cheapest(limit)]]
    return list(min(plans)[1])
""",
    ),
    (
        "limits in order, the last of equal plans",
        (
            (
                "for limit in {before[b] - before[a] for a in range(n) for b in range(a + 1, n + 1)}:",
                "for limit in sorted({before[b] - before[a] for a in range(n) for b in range(a + 1, n + 1)}):",
            ),
            (
                "        best = min(best, (cost + limit, starts))",
                "        if cost + limit <= best[0]:\n            best = cost + limit, starts",
            ),
        ),
    ),
]
