"""Answers to diagnose_hang: see test_exercises.py."""

MUTANTS = [
    ("a circle is never said", "for the second time", (("if peer in path:", "if False and peer in path:"), ("while states[path[-1]][0] in END:", "while states[path[-1]][0] in END and len(path) < 9:"))),
    ("those who wait for the circle are on it", "which ranks only wait for those", (("sorted(path[path.index(peer) :])", "sorted(path)"),)),
    ("two ends of one message are a circle", "All is right there", (("if states[peer] == (END[what], path[-1]):", "if False:"),)),
    ("only circles that begin with rank 0", "for the second time", (("for rank in range(len(states)):", "for rank in range(1):"),)),
    ("any two ends are one message", "for the second time", (("if states[peer] == (END[what], path[-1]):", "if states[peer][1] == path[-1]:"),)),
    ("whoever has returned is to blame", "All is right there", (("if len(path) > 1 and states[path[-1]] ==", "if states[path[-1]] =="),)),
    ("nobody ever left", "at the end of a chain", (('            return "left", path[-1]\n', "            continue\n"),)),
    ("the rank that waits, not the one that left", "at the end of a chain", (('return "left", path[-1]', 'return "left", rank'),)),
    ("counts are not compared", "Who has counted the fewest", (("if len(set(counts.values())) > 1:", "if False:"),)),
    ("who has counted the most", "Who has counted the fewest", (("count == min(counts.values())", "count == max(counts.values())"),)),
    ("one rank that skipped a call, of several", "Who has counted the fewest", (("tuple(r for r, count in counts.items() if count == min(counts.values()))", "(min(counts, key=counts.get),)"),)),
    ("who waits in new_group hangs", "All is right there", (("if len(set(counts.values())) > 1:", "if counts:"),)),
    ("a word alone", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    ("two that name each other go through if one of them sends", "for the second time", (("if states[peer] == (END[what], path[-1]):", "if states[peer][1] == path[-1] and 'send' in (what, states[peer][0]):"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "takes away whoever can go on, again and again",
        """
def diagnose_hang(states):
    calls = [detail for what, detail in states if what == "new_group"]
    if calls and min(calls) < max(calls):
        return "names", [r for r, state in enumerate(states) if state == ("new_group", min(calls))]
    peers = {r: detail for r, (what, detail) in enumerate(states) if what in ("send", "recv")}
    for rank, peer in peers.items():
        if states[peer] == ("returned", None):
            return "left", peer
    moving = {r for r in range(len(states)) if r not in peers}
    for rank, peer in peers.items():
        if peers.get(peer) == rank and states[peer][0] != states[rank][0]:
            moving.add(rank)
    while more := {r for r, peer in peers.items() if peer in moving} - moving:
        moving |= more
    stuck = {r: peer for r, peer in peers.items() if r not in moving}
    while stuck and set(stuck) != set(stuck.values()):
        stuck = {r: peer for r, peer in stuck.items() if r in stuck.values()}
    return ("circle", sorted(stuck)) if stuck else ("healthy", None)
""",
    ),
    (
        "as many steps as there are ranks, then once around",
        """
def diagnose_hang(states):
    called = {r: n for r, (what, n) in enumerate(states) if what == "new_group"}
    fewest = min(called.values(), default=0)
    behind = tuple(r for r, n in called.items() if n == fewest)
    if len(behind) < len(called):
        return "names", behind

    def after(rank):
        what, peer = states[rank]
        if what not in ("send", "recv"):
            return None
        other = "recv" if what == "send" else "send"
        return None if states[peer] == (other, rank) else peer

    for rank in range(len(states)):
        here = rank
        for _ in states:
            there = after(here)
            if there is None:
                break
            here = there
        else:
            circle = {here}
            while (here := after(here)) not in circle:
                circle.add(here)
            return "circle", tuple(sorted(circle))
        if here != rank and states[here][0] == "returned":
            return "left", here
    return "healthy", None
""",
    ),
]

NOTHING = [
    ("all is well", '\ndef diagnose_hang(states):\n    return "healthy", None\n'),
    ("a circle of all", '\ndef diagnose_hang(states):\n    return "circle", tuple(range(len(states)))\n'),
]  # fmt: skip
