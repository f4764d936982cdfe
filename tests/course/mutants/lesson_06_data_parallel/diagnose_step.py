"""Answers to diagnose_step: see test_exercises.py."""

_VALUES = "    if not near(used, mean.expand_as(used)):\n"
_NEAR = "return torch.allclose(a, b, rtol=1e-4, atol=1e-5)"
_TWICE = '                return "twice", rank\n'
_UNDIVIDED = '                return "undivided", rank\n'
_ORDER = '                return "order", rank\n'
_WAITS = '            return "waits", rank\n'
_UNTIL = "        if any(abs(start - end) < 1e-6 for start in stands for end in ends):\n"
_BLOCKED = '                return "blocked", layer\n'
_PLACE = "            if ready.index(layer) >= place:\n"
_SMALL = 'return ("small" if step(pairs) < 0.92 * step(buckets) else "healthy"), None'
_TAKES = "takes = [min(rows[b][3] - rows[b][2] for rows in sent) for b in range(len(buckets))]"

MUTANTS = [
    ("gradients are not compared", "Which ranks use the mean", ((_VALUES, "    if False:\n"),)),
    (
        "the odd one of a division is the rank after it",
        "what does the other one use",
        ((_TWICE, '                return "twice", (rank + 1) % ranks\n'),),
    ),
    (
        "whose gradient weighs too much is not asked",
        "Along whose gradient is it off",
        ((_UNDIVIDED, '                return "undivided", 0\n'),),
    ),
    (
        "no rounding allowed",
        "Which ranks use the mean",
        ((_NEAR, "return torch.equal(a.contiguous(), b.contiguous())"),),
    ),
    (
        "the order is the other ranks'",
        "under another layer's name",
        ((_ORDER, '                return "order", others[0]\n'),),
    ),
    (
        "hooks are not looked at",
        "Where does backward stand still",
        ((_WAITS, "            pass\n"),),
    ),
    (
        "every pause is a wait",
        "Does a pause end with a message",
        ((_UNTIL, "        if stands:\n"),),
    ),
    (
        "the first rank waits",
        "on which rank",
        ((_WAITS, '            return "waits", 0\n'),),
    ),
    (
        "readiness is not looked at",
        "for which of its layers",
        ((_BLOCKED, "                pass\n"),),
    ),
    (
        "the bucket, no layer",
        "for which of its layers",
        ((_BLOCKED, '                return "blocked", buckets.index(bucket)\n'),),
    ),
    (
        "whatever is out of order is blocked",
        "Does a layer out of order delay anything",
        (
            (
                _PLACE,
                "            if ready.index(layer) != place - len(bucket) + bucket.index(layer):\n",
            ),
        ),
    ),
    (
        "whatever is seen is too small",
        "is it latency or bytes",
        (
            (
                _SMALL,
                'seen = sent[0][-1][3] > 1.1 * back[0][-1][3]\n    return ("small" if seen else "healthy"), None',
            ),
        ),
    ),
    (
        "buckets are never too small",
        "what depends on its size and what does not",
        ((_SMALL, 'return "healthy", None'),),
    ),
    (
        "bytes for latency",
        "what depends on its size",
        (("latency, layer_takes =", "layer_takes, latency ="),),
    ),
    (
        "a word, no place",
        "A diagnosis is two things",
        ((_SMALL, 'return "small" if step(pairs) < 0.92 * step(buckets) else "healthy"'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_step(buckets, events, own, used):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "by the share of each rank's gradient, and by the slope between the smallest and the largest bucket",
        """
def diagnose_step(buckets, events, own, used):
    ranks = len(own)
    # Which shares of the ranks' gradients make what a rank uses? Layers are many, ranks few.
    shares = torch.linalg.lstsq(own.T.double(), used.T.double()).solution.T * ranks
    left = (shares / ranks @ own.double() - used).norm(dim=1) / used.double().norm(dim=1)
    if left.max() > 1e-3:
        apart = [sum(float((used[a] - used[b]).norm()) for b in range(ranks)) for a in range(ranks)]
        return "order", apart.index(max(apart))
    off = (shares - 1).abs() > 0.1
    if off.any():
        rows = off.any(1)
        return ("undivided", int(off[0].nonzero())) if rows.all() else ("twice", int(rows.nonzero()))

    def rows(rank, what):
        return [row[1:] for row in events[rank] if row[0] == what]

    for rank in range(ranks):
        arrived = {round(end, 4) for _, _, end in rows(rank, "all_reduce")}
        last = None
        for _, begin, end in rows(rank, "backward"):
            if last is not None and begin - last > 1e-5 and round(begin, 4) in arrived:
                return "waits", rank
            last = end
    done = {}
    for rank in range(ranks):
        for layer, _, end in rows(rank, "backward"):
            done[layer] = max(end, done.get(layer, 0.0))
    late = [(max(bucket, key=done.get), after) for bucket, after in zip(buckets, buckets[1:])]
    for layer, after in late:
        if done[layer] > max(done[one] for one in after):
            return "blocked", layer
    messages = [rows(rank, "all_reduce") for rank in range(ranks)]
    took = [min(m[b][2] - m[b][1] for m in messages) for b in range(len(buckets))]
    few, many = (choose(range(len(buckets)), key=lambda b: len(buckets[b])) for choose in (min, max))
    each = (took[many] - took[few]) / (len(buckets[many]) - len(buckets[few]))
    fixed = took[few] - each * len(buckets[few])
    now = max(m[-1][2] for m in messages)
    through, waiting = 0.0, list(buckets)
    while waiting:
        group = [layer for bucket in waiting[:2] for layer in bucket]
        waiting = waiting[2:]
        through = max(through, max(done[layer] for layer in group)) + fixed + each * len(group)
    return ("small", None) if through < 0.9 * now else ("healthy", None)
""",
    ),
    (
        "in lists of numbers, what fits best of all that there is",
        """
def diagnose_step(buckets, events, own, used):
    own, used, ranks, layers = own.tolist(), used.tolist(), len(own), len(own[0])
    mean = [sum(g[i] for g in own) / ranks for i in range(layers)]
    guesses = {("healthy", None): [mean] * ranks}
    for r in range(ranks):
        guesses["twice", r] = [[m / ranks for m in mean] if q == r else mean for q in range(ranks)]
        heavy = [m + g - g / ranks for m, g in zip(mean, own[r])]
        guesses["undivided", r] = [heavy] * ranks
        for a in range(len(buckets)):
            for b in range(a):
                if len(buckets[a]) != len(buckets[b]):
                    continue
                swap = dict(zip(buckets[a] + buckets[b], buckets[b] + buckets[a]))
                met = [mean[i] + (own[r][swap.get(i, i)] - own[r][i]) / ranks for i in range(layers)]
                found = [met[swap.get(i, i)] for i in range(layers)]
                guesses["order", r] = min(
                    [guesses.get(("order", r)), [found if q == r else met for q in range(ranks)]],
                    key=lambda one: off(one, used),
                )
    word, where = min(guesses, key=lambda name: off(guesses[name], used))
    if word != "healthy":
        return [word, where]
    ends = {}
    for r, rows in enumerate(events):
        stood = None
        for what, n, begin, end in sorted(rows, key=lambda row: row[2]):
            if what == "backward":
                if stood is not None and begin > stood + 1e-6:
                    if any(w == "all_reduce" and abs(e - begin) < 1e-6 for w, _, _, e in rows):
                        return ["waits", r]
                stood = end
                ends[n] = max(end, ends.get(n, 0))
    order = [n for what, n, *_ in events[-1] if what == "backward"]
    for b, bucket in enumerate(buckets[:-1]):
        for layer in bucket:
            if all(order.index(layer) > order.index(other) for other in buckets[b + 1]):
                return ["blocked", layer]
    took = [min(e - s for rows in events for w, n, s, e in rows if (w, n) == ("all_reduce", b)) for b in range(len(buckets))]
    x = [len(bucket) for bucket in buckets]
    mx, mt = sum(x) / len(x), sum(took) / len(took)
    slope = sum((a - mx) * (t - mt) for a, t in zip(x, took)) / sum((a - mx) ** 2 for a in x)
    end = 0
    for b in range(0, len(buckets), 2):
        group = sum(buckets[b:b + 2], [])
        end = max([end] + [ends[i] for i in group]) + mt + slope * (len(group) - mx)
    now = max(e for rows in events for *_, e in rows)
    return ["small" if end / now < 0.92 else "healthy", None]


def off(guess, used):
    if guess is None:
        return float("inf")
    return max(abs(a - b) for one, other in zip(guess, used) for a, b in zip(one, other))
""",
    ),
]
