"""Answers to limiting_cause: see test_exercises.py."""

_RANK = "    rank = computed.index(max(computed))\n"
_KIND = '    kind = "work" if flops[rank] > 1.15 * usual_flops else "slow"\n'
_DATA = '    lost["data", None] = min(total(rank, "load") for rank in ranks)\n'
_AGAIN = '    lost["recompute", None] = again\n'
_FIXED = "    fixed = quick[0] - each * sizes[0]\n"
_RETURN = '    return cause if lost[cause] > whole / 9 else ("healthy", None)\n'

MUTANTS = [
    (
        "the rank whose messages take longest",
        "Which rank takes longer, and has it more",
        ((_RANK, '    rank = max(ranks, key=lambda one: total(one, "all_reduce"))\n'),),
    ),
    (
        "whoever takes longer is slow",
        "how many FLOPs has it in that time",
        ((_KIND, '    kind = "slow"\n'),),
    ),
    (
        "whoever takes longer has more work",
        "has it more to compute",
        ((_KIND, '    kind = "work"\n'),),
    ),
    (
        "the loader is not looked at",
        "What does each step begin with",
        ((_DATA, '    lost["data", None] = 0.0\n'),),
    ),
    (
        "repeated layers are not looked at",
        "How often does each layer's forward run",
        ((_AGAIN, '    lost["recompute", None] = 0.0\n'),),
    ),
    (
        "all of a message's time is bytes",
        "what of it would larger buckets save",
        ((_FIXED, "    fixed, each = 0.0, quick[0] / sizes[0]\n"),),
    ),
    (
        "all of a message's time is latency",
        "how does a message's time grow with its bytes",
        ((_FIXED, "    fixed, each = quick[0], 0.0\n"),),
    ),
    (
        "latency and bytes exchanged",
        "what is left when the part without bytes",
        (('zip(("latency", "bytes"), spent', 'zip(("bytes", "latency"), spent'),),
    ),
    (
        "whatever costs most is the limit",
        "Does what seems long there",
        ((_RETURN, "    return cause\n"),),
    ),
    (
        "messages count from a rank's own call, so a late rank is charged to the network",
        "Which rank takes longer, and has it more to compute",
        (
            (
                '    exposed = whole - computed[rank] - total(rank, "load")\n',
                '    exposed = max(total(one, "all_reduce") for one in ranks)\n',
            ),
        ),
    ),
    ("a word, no place", "A diagnosis is two things", ((_RETURN, "    return cause[0]\n"),)),
]

NOTHING = [
    ("all is well", "\ndef limiting_cause(events, flops):\n    return 'healthy', None\n"),
]

ACCEPTED = [
    (
        "each cause is undone in a replay of the trace",
        """
def limiting_cause(events, flops):
    ranks, steps = range(len(flops)), []
    for rows in events:
        mine = []
        for what, number, begin, end in rows:
            if what == "load":
                mine.append({"load": end - begin, "work": [], "sent": []})
            elif what == "all_reduce":
                mine[-1]["sent"].append((number, begin, end))
            else:
                mine[-1]["work"].append((what, number, begin, end))
        steps.append(mine)
    costs, free = {}, 0.0
    for k in range(len(steps[0])):
        for same in zip(*(steps[r][k]["sent"] for r in ranks)):
            free = max(free, *(begin for _, begin, _ in same))
            costs[same[0][0]] = same[0][2] - free
            free = same[0][2]
    few, many = min(costs), max(costs)
    beta = (costs[many] - costs[few]) / (many - few)
    alpha = costs[few] - beta * few

    def length(alpha=alpha, beta=beta, load=True, again=True, faster=(None, 1.0)):
        now = 0.0
        for k in range(len(steps[0])):
            ends = []
            for r in ranks:
                at, seen, done = now + load * steps[r][k]["load"], set(), {}
                for what, layer, begin, end in steps[r][k]["work"]:
                    repeated = what == "forward" and layer in seen
                    seen |= {layer} if what == "forward" else set()
                    scale = faster[1] if r == faster[0] else 1.0
                    at += (end - begin) * scale * (again or not repeated)
                    done[end] = at
                ends.append((at, [(size, done[call]) for size, call, _ in steps[r][k]["sent"]]))
            free = 0.0
            for same in zip(*(calls for _, calls in ends)):
                free = max(free, *(call for _, call in same)) + alpha + beta * same[0][0]
            now = max(free, *(at for at, _ in ends))
        return now

    busy = [sum(end - begin for one in steps[r] for _, _, begin, end in one["work"]) for r in ranks]
    most = max(ranks, key=lambda r: busy[r])
    usual = sorted(busy)[len(busy) // 2 - 1]
    more = flops[most] > 1.2 * min(flops)
    undone = {
        ("work" if more else "slow", most): length(faster=(most, usual / busy[most])),
        ("data", None): length(load=False),
        ("recompute", None): length(again=False),
        ("latency", None): length(alpha=0.0),
        ("bytes", None): length(beta=0.0),
    }
    best = min(undone, key=undone.get)
    return best if undone[best] < 0.9 * length() else ("healthy", None)
""",
    ),
    (
        "one question after the other, in numpy",
        """
import numpy as np


def limiting_cause(events, flops):
    whole = max(row[3] for rows in events for row in rows)

    def of(rank, what):
        return np.array([row[1:] for row in events[rank] if row[0] == what])

    def spent(rank, what):
        return np.diff(of(rank, what)[:, 1:]).sum()

    ranks = np.arange(len(flops))
    if min(spent(r, "load") for r in ranks) > whole / 8:
        return ["data", None]
    computing = np.array([spent(r, "forward") + spent(r, "backward") for r in ranks])
    odd = computing.argmax()
    if computing[odd] > 1.2 * np.median(np.delete(computing, odd)):
        work = np.array(flops)
        return ["work" if work[odd] > 1.2 * np.median(np.delete(work, odd)) else "slow", int(odd)]
    extra = len(of(0, "forward")) / len(of(0, "backward")) - 1
    if extra > 0.5:
        return ["recompute", None]
    if computing[odd] > 0.85 * whole:
        return ["healthy", None]
    starts = np.max([of(r, "all_reduce")[:, 1] for r in ranks], 0)
    size, ends = of(0, "all_reduce")[:, 0], of(0, "all_reduce")[:, 2]
    took = ends - np.maximum(starts, np.concatenate([[0.0], ends[:-1]]))
    beta, alpha = np.polyfit(size, took, 1)
    return ["latency" if alpha > beta * size.mean() else "bytes", None]
""",
    ),
]
