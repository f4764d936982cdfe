"""Answers to choose_saves: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_BOTH = "return saves + ((1 - nodes) * with_process + nodes * with_node) / between"


_YOUNG = '''
import math


def choose_saves(copy, file, between, nodes, again, from_file):
    """The lesson's, for each kind of save by itself: {each}."""
    choices = [2**power for power in range(1, 12)]

    def nearest(save, mtbf):
        best = math.sqrt(2 * save * mtbf)
        return min(choices, key=lambda one: abs(math.log(one / best)))

    return nearest(copy, {process}), nearest(file, {node})
'''

_SIMULATED = '''
import random


def choose_saves(copy, file, between, nodes, again, from_file):
    """Runs of its own, in steps of a coordinate search."""
    choices = [2**power for power in range(1, 12)]

    def forward(copies, files, chance):
        whole = place = 0.0
        for _ in range(4000):
            life = chance.expovariate(1 / between)
            # Saves come in each cycle: their time is spread evenly.
            place += life / (1 + copy / copies + file / files)
            saved = place // files * files
            if chance.random() >= nodes:
                saved = max(saved, place // copies * copies)
            place, whole = saved, whole + life
        return place / whole

    best = (64, 256)
    for _ in range(3):
        best = max(((one, best[1]) for one in choices), key=lambda both: forward(*both, random.Random(0)))
        best = max(((best[0], one) for one in choices), key=lambda both: forward(*both, random.Random(0)))
    return best
'''

_CLOSED = '''
import math


def choose_saves(copy, file, between, nodes, again, from_file):
    """Two levels by square roots, or files alone: whichever loses less."""
    choices = [2**power for power in range(1, 12)]

    def nearest(steps):
        return min(choices, key=lambda one: abs(math.log(one / steps)))

    copies = math.sqrt(2 * copy * between / (1 - nodes))
    files = math.sqrt(2 * file * between / nodes)
    both = math.sqrt(2 * copy * (1 - nodes) / between) + math.sqrt(2 * file * nodes / between)
    alone = math.sqrt(2 * file / between)
    if both < alone and copies < files:
        return nearest(copies), nearest(files)
    return choices[-1], nearest(math.sqrt(2 * file * between))
'''

MUTANTS = [
    (
        "the lesson's, with all failures for both",
        "Which failures does a file help against",
        _YOUNG.format(each="all failures", process="between", node="between"),
    ),
    (
        "each kind with its failures",
        "if there were no copies at all",
        _YOUNG.format(each="its failures", process="between / (1 - nodes)", node="between / nodes"),
    ),
    ("files alone", "Which failures does a file help against", ((_RETURN, "    return 2048, min((cost(2048, files), files) for files in choices)[1]\n"),)),
    ("copies alone", "if there were no copies at all", ((_RETURN, "    return min((cost(copies, 2048), copies) for copies in choices)[1], 2048\n"),)),
    ("all failures take a node", "Which failures does a file help against", ((_BOTH, "return saves + with_node / between"),)),
    ("no failure takes a node", "if there were no copies at all", ((_BOTH, "return saves + with_process / between"), ("min(copies, files) / 2", "copies / 2"))),
    ("saves cost nothing", "Which failures does a file help against", ((_BOTH, _BOTH.replace("saves + ", "")),)),
    ("a number that is none", "each one of 2, 4, 8", ((_RETURN, "    return 100, 1000\n"),)),
]  # fmt: skip

NOTHING = [
    ("none", "\ndef choose_saves(copy, file, between, nodes, again, from_file):\n    return None\n"),
    ("always", "\ndef choose_saves(copy, file, between, nodes, again, from_file):\n    return (256, 2048)\n"),
]  # fmt: skip

ACCEPTED = [
    ("runs of its own", _SIMULATED),
    ("by square roots, both ways", _CLOSED),
]
