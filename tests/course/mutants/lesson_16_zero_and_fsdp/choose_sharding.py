"""Answers to choose_sharding: see test_exercises.py."""

_CALL = "key=lambda choice: seconds(*choice)"
_FITS = "held(*c) + 4 * blocks <= room"
_NEAR_BEST = "the best choice takes"

MUTANTS = [
    (
        "units of one block, as in the lesson",
        "What does a collective cost besides its bytes",
        (("(c for c in choices if", "(c for c in choices if c[0] == 1 and"),),
    ),
    (
        "the least memory",
        _NEAR_BEST,
        ((_CALL, "key=lambda choice: held(*choice)"),),
    ),
    (
        "as large units as fit",
        _NEAR_BEST,
        ((_CALL, "key=lambda choice: (-choice[0], seconds(*choice))"),),
    ),
    (
        "messages cost their bytes alone",
        "What does a collective cost besides its bytes",
        (("(latency + gap + part / slowest)", "part / slowest"),),
    ),
    (
        "everything is hidden but what is longer than compute",
        "how large is the best unit without them",
        (
            (
                "        link = now = there = once",
                "        passes = units * once * (2 if keep else 3)\n"
                "        return max(3 * blocks * forward, passes + 2 * units * across)\n"
                "        link = now = there = once",
            ),
        ),
    ),
    (
        "always sharded over all",
        "What must cross between the nodes",
        (('for over in ("all", "node")', 'for over in ("all",)'),),
    ),
    (
        "never kept",
        "Which collectives fall away",
        (("for keep in (False, True)", "for keep in (False,)"),),
    ),
    (
        "one unit is whole at a time",
        "how many units are whole at once",
        (("min(2 * per_unit, blocks)", "per_unit"),),
    ),
    (
        "a shard counts once, not with its gradient and two moments",
        "how many units are whole at once",
        (("(4 * blocks / ranks + whole)", "(blocks / ranks + whole)"),),
    ),
    (
        "it always fits",
        "What has a rank of each parameter all the time",
        ((_FITS, "held(*c) < 1e30"),),
    ),
    (
        "between the nodes as fast as inside",
        _NEAR_BEST,
        (
            ('inside if over == "node" or nodes == 1 else min(inside, between)', "inside"),
            ("part / nodes / between)", "part / nodes / inside)"),
        ),
    ),
    (
        "no choice",
        "a choice is (per_unit, keep, over)",
        ((_CALL, _CALL + "\n    )[0]\n    return (0"),),
    ),
    (
        "run by the answer",
        "dtcourse.course.checks",
        """
def choose_sharding(*case):
    from dtcourse.course.checks.lesson_16_zero_and_fsdp.choose_sharding import choices, measure
    costs = {choice: measure(case, choice) for choice in choices(case)}
    return min((c for c in costs if costs[c][1] <= case[-1]), key=lambda c: costs[c][0])
""",
    ),
]  # fmt: skip

NOTHING = [
    (
        "what holds least of all",
        """
def choose_sharding(*case):
    return 1, False, "all"
""",
    ),
]

ACCEPTED = [
    (
        "as a list, from the largest unit on",
        (
            ("for per_unit in range(1, blocks + 1)", "for per_unit in range(blocks, 0, -1)"),
            ("    return min(\n", "    return list(min(\n"),
            (_CALL + "\n    )", _CALL + "\n    ))"),
        ),
    ),
    (
        "a formula for each part: what nothing hides, and the longer of messages and compute between",
        """
def choose_sharding(
    blocks, block_bytes, forward, nodes, per_node, latency, gap, inside, between, room
):
    found = []
    for n in range(1, blocks + 1):
        for keep in (False, True):
            for over in ("all", "node"):
                if blocks % n:
                    continue
                s = per_node * nodes if over == "all" else per_node
                states = 4 * blocks / s + (blocks if keep else min(2 * n, blocks))
                if states * block_bytes + 100 > room:
                    continue
                units, bandwidth = blocks // n, min(inside, between) if over == "all" else inside
                once = (s - 1) * (latency + gap + n * block_bytes / s / bandwidth)
                across = 0
                if over == "node":
                    across = 2 * (nodes - 1) * (latency + gap + n * block_bytes / s / nodes / between)
                f, b = n * forward, 2 * n * forward
                takes = once + (units - 1) * max(f, once) + f  # forward
                messages = once if keep else 2 * once
                takes += (0 if keep else once) + b + (units - 1) * max(b, messages, across) + once + across
                found.append((takes, n, keep, over))
    return min(found)[1:]
""",
    ),
    (
        "event by event: a list of messages for one ring",
        """
def choose_sharding(
    blocks, block_bytes, forward, nodes, per_node, latency, gap, inside, between, room
):
    def walk(n, keep, over):
        p = per_node if over == "node" else per_node * nodes
        rate = inside if over == "node" else min(inside, between)
        busy = [0.0, 0.0]  # the ring, and the links to the other nodes

        def send(at, which=0):
            if which:
                takes = 2 * (nodes - 1) * (latency + gap + n * block_bytes / (p * nodes * between))
            else:
                takes = (p - 1) * (latency + gap + n * block_bytes / (p * rate))
            busy[which] = max(busy[which], at) + takes
            return busy[which]

        order = list(range(blocks // n))
        arrives, clock = {order[0]: send(0.0)}, 0.0
        for u in order:
            clock = max(clock, arrives[u])
            if u != order[-1]:
                arrives[u + 1] = send(clock)
            clock += n * forward
        if not keep:
            arrives[order[-1]] = send(clock)
        last = None
        for u in order[::-1]:
            if not keep:
                clock = max(clock, arrives[u])
                if u:
                    arrives[u - 1] = send(clock)
            clock += 2 * n * forward
            if last is not None:
                clock = max(clock, last)
                if over == "node":
                    send(clock, 1)
            last = send(clock)
        return send(last, 1) if over == "node" else last

    best = None
    for n in (n for n in range(1, blocks + 1) if blocks % n == 0):
        for keep, over in ((True, "node"), (True, "all"), (False, "node"), (False, "all")):
            p = per_node if over == "node" else per_node * nodes
            need = block_bytes * (4 * blocks / p + (blocks if keep or 2 * n > blocks else 2 * n))
            if 1.005 * need > room:
                continue
            took = walk(n, keep, over)
            if best is None or took < best[0]:
                best = took, (n, keep, over)
    return best[1]
""",
    ),
]
