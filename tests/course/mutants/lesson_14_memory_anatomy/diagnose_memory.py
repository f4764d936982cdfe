"""Answers to diagnose_memory: see test_exercises.py."""

_LEFT = "if 0 < step < len(steps) - 1]"
_CYCLES = '    if longest > 1:\n        return "cycles", longest\n'
_LARGE = "            if live > capacity:\n"

MUTANTS = [
    (
        "the optimizer's states are a leak",
        "the optimizer's states from the first step on",
        ((_LEFT, "if step < len(steps) - 1]"),),
    ),
    (
        "the last step's gradients are a leak",
        "the last one's until the end",
        ((_LEFT, "if 0 < step]"),),
    ),
    (
        "gradients wait, too",
        "each step's gradients until the next step",
        (("if longest > 1:", "if longest > 0:"),),
    ),
    (
        "what waits is kept",
        "How long does the longest wait take",
        ((_CYCLES, ""),),
    ),
    (
        "the last of the kept ones",
        "in which step is the first of them born",
        (('("kept", min(left))', '("kept", max(left))'),),
    ),
    (
        "steps counted from one",
        "in which step is the first of them born",
        (('("kept", min(left))', '("kept", 1 + min(left))'),),
    ),
    (
        "steps that the collector lets pass",
        "How long does the longest wait take",
        (('return "cycles", longest', 'return "cycles", longest + 1'),),
    ),
    (
        "live bytes at the ends of steps",
        "the most that is alive at any moment",
        (
            (_LARGE, "            if False:\n"),
            (
                "            (born if change > 0 else died)[storage] = step\n",
                '            (born if change > 0 else died)[storage] = step\n        if live > capacity:\n            return "too large", step\n',
            ),
        ),
    ),
    (
        "only what is reserved counts",
        "Reserved bytes follow live ones",
        ((_LARGE, "            if False:\n"),),
    ),
    (
        "only what is alive counts",
        "Does what is reserved",
        (("        if held > capacity:\n", "        if False:\n"),),
    ),
    (
        "reserved bytes that grow",
        "What stays there is right",
        (
            (
                "        if held > capacity:\n",
                "        if step and held > reserved[step - 1]:\n",
            ),
        ),
    ),
    (
        "a word, no step",
        "A diagnosis is two things",
        (('("kept", min(left)) if left else ("healthy", None)', '"kept" if left else "healthy"'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_memory(steps, reserved, capacity):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "live bytes as sums, lifetimes by storage",
        """
def diagnose_memory(steps, reserved, capacity):
    events = [(step, *event) for step, part in enumerate(steps) for event in part]
    live = torch.tensor([event[3] for event in events]).cumsum(0)
    over = (live > capacity).nonzero().flatten()
    if len(over):
        return ("too large", events[int(over[0])][0])
    over = (torch.tensor(reserved) > capacity).nonzero().flatten()
    if len(over):
        return ("fragments", int(over[0]))
    lives = {}
    for step, storage, _, _ in events:
        lives.setdefault(storage, []).append(step)
    waits = [life[1] - life[0] for life in lives.values() if len(life) == 2]
    if max(waits) >= 2:
        return ("cycles", max(waits))
    kept = sorted(life[0] for life in lives.values() if len(life) == 1)
    kept = [step for step in kept if step not in (0, len(steps) - 1)]
    return ("kept", kept[0]) if kept else ("healthy", None)
""",
    ),
    (
        "step by step, with what is alive",
        """
def diagnose_memory(steps, reserved, capacity):
    alive, waits, total = {}, [0], 0
    for step, events in enumerate(steps):
        for storage, operator, change in events:
            total += change
            if total > capacity:
                return ["too large", step]
            if change > 0:
                alive[storage] = step
            else:
                waits.append(step - alive.pop(storage))
    for step in range(len(steps)):
        if reserved[step] > capacity:
            return ["fragments", step]
    if max(waits) > 1:
        return ["cycles", max(waits)]
    for step in range(1, len(steps) - 1):
        if step in alive.values():
            return ["kept", step]
    return ["healthy", None]
""",
    ),
]
