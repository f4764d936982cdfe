"""Answers to choose_shards: see test_exercises.py."""

_SIZES = "for size in (1, 2, 4, 8, 16, 32)"
_READERS = "for readers in (1, 2, 6)"
_BUFFERS = "for buffer in (0, 16, 32, 64)"
_ROOM = "        if room < min(96, (2 * readers + 2) * size + buffer):\n            continue\n"
_MIXED = "        if common > share:\n"
_HELD = "        elif held <= room:\n"
_RETURN = "    return min(found)[1]\n"

MUTANTS = [
    (
        "large shards, one reader: the lesson's formula for opens alone",
        "How many opens does one reader make in turn",
        ((_READERS, "for readers in (1,)"),),
    ),
    (
        "the largest shards, as the lesson has it",
        "how much has the rank with most to read",
        ((_SIZES, "for size in (32,)"), (_ROOM, "")),
    ),
    (
        "small files",
        "How many opens does one reader make in turn",
        ((_SIZES, "for size in (1,)"),),
    ),
    (
        "as many readers as there may be",
        "Of what does the room hold more",
        ((_READERS, "for readers in (6,)"),),
    ),
    (
        "no buffer",
        "a larger buffer does",
        ((_BUFFERS, "for buffer in (0,)"),),
    ),
    (
        "the largest buffer",
        "what does a rank wait for before its first batch",
        ((_BUFFERS, "for buffer in (64,)"), (_ROOM, "")),
    ),
    (
        "mixing is not looked at",
        "How far does a sample get from those",
        ((_MIXED, "        if False:\n"),),
    ),
    (
        "memory is not looked at",
        "What does a reader hold that is ahead of the rank",
        ((_ROOM, ""), (_HELD, "        else:\n")),
    ),
    (
        "the best that is mixed most",
        "the best choice takes",
        (("            found.append((seconds, choice))\n", "            found.append((common, choice))\n"),),
    ),
    (
        "the longest of two, nothing measured",
        "How far does a sample get from those",
        """
def choose_shards(measure, latency, link, compute, room, share):
    def expected(size, readers):
        return max(88 / size * (latency + size * link) / readers, 88 * compute)

    found = [(expected(s, r), s, r, 0) for s in (1, 2, 4, 8, 16, 32) for r in (1, 2, 6)]
    return min(one for one in found if (2 * one[2] + 2) * one[1] <= room)[1:]
""",
    ),
    (
        "every choice is measured",
        "no more may be",
        """
def choose_shards(measure, latency, link, compute, room, share):
    found = []
    for size in (1, 2, 4, 8, 16, 32):
        for readers in (1, 2, 6):
            for buffer in (0, 16, 32, 64):
                seconds, held, common = measure(size, readers, buffer)
                if held <= room and common <= share:
                    found.append((seconds, (size, readers, buffer)))
    return min(found)[1]
""",
    ),
    ("shards of any size", "is not possible", ((_RETURN, "    return 12, 2, 16\n"),)),
    ("the time, too", "a choice is 3 things", ((_RETURN, "    return min(found)\n"),)),
]  # fmt: skip

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_shards(measure, latency, link, compute, room, share):
    return None
""",
    ),
]

# A rank's classes and moments followed sample by sample; nothing is measured but what mixes about enough.
FOLLOWED = """
import random
from collections import Counter


def choose_shards(measure, latency, link, compute, room, share):
    def read(size, buffer, draw):
        shards = [range(start, min(176, start + size)) for start in range(0, 176, size)]
        draw.shuffle(shards)
        held, out = [], []
        for shard in shards[::2]:
            for sample in shard:
                held.append(sample)
                if len(held) > buffer:
                    out.append(held.pop(draw.randrange(len(held))))
        draw.shuffle(held)
        return out + held

    def common(size, buffer):
        draw, found = random.Random(size), []
        for _ in range(30):
            order = read(size, buffer, draw)
            for start in range(0, len(order) - 15, 16):
                counts = Counter(sample // 22 for sample in order[start : start + 16])
                found.append(max(counts.values()) / 16)
        return sum(found) / len(found)

    def seconds(size, readers, buffer):
        shards = [min(size, 176 - start) for start in range(0, 176, size)]
        shards = sorted(shards, reverse=True)[::2]
        free, wire, ready, handed = [0.0] * readers, 0.0, [], [0.0] * (2 * readers + 2)
        now, took, batch = 0.0, 0, 0
        for number, many in enumerate(shards):
            reader = free.index(min(free))
            wire = max(wire, max(free[reader], handed[number]) + latency) + many * link
            free[reader] = wire
            now = max(now, wire)
            took += many
            while took - buffer >= 16 * (batch + 1):
                now, batch = now + 16 * compute, batch + 1
            handed.append(now)
        return now + (sum(shards) - 16 * batch) * compute

    every = [(s, r, b) for s in (1, 2, 4, 8, 16, 32) for r in (1, 2, 6) for b in (0, 16, 32, 64)]
    every = [(s, r, b) for s, r, b in every if min(96, (2 * r + 2) * s + b) <= room]
    mixing = {(s, b): common(s, b) for s, _, b in every}
    best, left = None, 12
    for choice in sorted(every, key=lambda one: seconds(*one)):
        if mixing[choice[::2]] > share + 0.03:
            continue
        if best and seconds(*choice) > 1.1 * best[0] or not left:
            break
        left -= 1
        took, held, found = measure(*choice)
        if held <= room and found <= share and (best is None or took < best[0]):
            best = took, choice
    return best[1]
"""

# From what is quickest and mixes too little, step by step to what mixes: a frontier of (size, buffer), then its times.
FRONTIER = """
def choose_shards(measure, latency, link, compute, room, share):
    sizes, buffers, known = [1, 2, 4, 8, 16, 32], [0, 16, 32, 64], {}

    def readers_for(size, buffer):
        fit = [r for r in (1, 2, 6) if min(96, (2 * r + 2) * size + buffer) <= room]
        return fit[-1] if fit else None

    def look(size, buffer):
        readers = readers_for(size, buffer)
        if readers is not None:
            known[size, readers, buffer] = measure(size, readers, buffer)
            return known[size, readers, buffer][2] <= share
        return False

    # For each buffer the largest shard that still mixes: it does not get smaller as the buffer grows.
    at = 0
    for buffer in buffers:
        while at < len(sizes) and look(sizes[at], buffer):
            at += 1
        at = max(0, at - 1)
    fine = {c: m for c, m in known.items() if m[2] <= share and m[1] <= room}
    return min(fine, key=lambda c: fine[c][0])
"""

ACCEPTED = [
    ("followed sample by sample", FOLLOWED),
    ("a frontier of shards and buffers", FRONTIER),
    ("a list", ((_RETURN, "    return list(min(found)[1])\n"),)),
]
