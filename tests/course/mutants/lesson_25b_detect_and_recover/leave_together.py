"""Answers to leave_together: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_ASK = "            dist.all_reduce(wish, op=dist.ReduceOp.MAX)\n"
_DELETE = "            del heard[:known]\n"
_SAVE = "            if wish:\n                save(number)\n"
_WISH = "            wish = torch.tensor([max(heard[:known], default=0)])\n"
_EVERY = "            if number % every:\n                continue\n"
_BACK = (
    "        for number, handler in before.items():\n            signal.signal(number, handler)\n"
)
_HEAR = "        heard.append(2 if number == signal.SIGTERM else 1)\n"

_GATHERED = '''
import signal

import torch
import torch.distributed as dist


def leave_together(step, save, last, every):
    """Counts of what was heard; of all ranks, two bytes each."""
    counts = {signal.SIGTERM: 0, signal.SIGURG: 0}

    def count(number, frame):
        counts[number] += 1

    before = [(number, signal.signal(number, count)) for number in counts]
    answered = dict.fromkeys(counts, 0)
    number = 0
    try:
        while number < last:
            number += 1
            step(number)
            if number % every == 0:
                now = dict(counts)
                mine = torch.tensor([now[one] > answered[one] for one in counts], dtype=torch.uint8)
                answered = now
                everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, mine)
                leaves, saves = torch.stack(everyone).any(0).tolist()
                if leaves or saves:
                    save(number)
                if leaves:
                    break
    finally:
        for one, handler in before:
            signal.signal(one, handler)
    return number
'''

MUTANTS = [
    ("who has heard leaves", "waited in all_reduce()", ((_ASK, ""),)),
    (
        "rank 0 decides",
        "by what do the others decide",
        ((_ASK, "            dist.broadcast(wish, src=0)\n"),),
    ),
    ("all must have heard", "by what do the others decide", ((_ASK, _ASK.replace("MAX", "MIN")),)),
    ("wishes are added", "does one wish on two ranks make it another", ((_ASK, _ASK.replace("MAX", "SUM")),)),
    ("a wish stays", "What is left of a wish", ((_DELETE, ""),)),
    (
        "forgotten after the save",
        "a signal that comes after the ranks have asked",
        ((_DELETE, ""), (_SAVE, _SAVE + "            heard.clear()\n")),
    ),
    (
        "the last wish counts",
        "Which of the two wishes wins",
        ((_ASK, "            latest = torch.tensor([dist.get_rank() * 3 + wish.item() if wish else 0])\n            dist.all_reduce(latest, op=dist.ReduceOp.MAX)\n            wish = latest % 3\n"), ("max(heard[:known], default=0)", "min(heard[:known], default=0)")),
    ),
    (
        "one step late",
        "by what do the others decide",
        (("            step(number)\n            if number % every", "            if number > 1:\n                step(number - 1)\n            if number % every"),),
    ),
    ("asked after every step", "should take", ((_EVERY, ""),)),
    (
        "by objects",
        "How many bits does a rank have to say",
        ((_ASK, "            both = [None] * dist.get_world_size()\n            dist.all_gather_object(both, wish.item())\n            wish = torch.tensor([max(both)])\n"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        (("def leave_together(", EVERYONES + "def leave_together("), (_ASK, "            wish = max(everyones(wish))\n")),
    ),
    ("handlers stay", "another handler", ((_BACK, "        pass\n"),)),
    ("SIGURG is not heard", "What is left of a wish", ((_HEAR, "        if number == signal.SIGTERM:\n            heard.append(2)\n"),)),
    (
        "the course's",
        "asks you to write that yourself",
        (("    heard = []\n", "    from dtcourse.fault_tolerance import Preemption\n\n    Preemption()\n    heard = []\n"),),
    ),
]  # fmt: skip
NAMED = "wishes are added"

NOTHING = [
    ("nothing", "\ndef leave_together(step, save, last, every):\n    return last\n"),
    (
        "no step",
        "\ndef leave_together(step, save, last, every):\n    save(every)\n    return every\n",
    ),
]

ACCEPTED = [
    ("counts, gathered", _GATHERED),
    (
        "two flags",
        (
            (_WISH, "            wish = torch.tensor([1 in heard[:known], 2 in heard[:known]], dtype=torch.int32)\n"),
            ("            if wish:\n", "            if wish.any():\n"),
            ("            if wish == 2:\n", "            if wish[1]:\n"),
        ),
    ),
]  # fmt: skip
