"""Answers to what_happened: see test_exercises.py."""

_OUT = 'if beats[rank]["left"] in ("raised OutOfMemoryError", "raised MemoryError"):'
_ASKED = 'if ranks[rank]["signals"] and all('
_LEFT = '        if beats[rank]["left"]:\n            continue\n'
_PAUSE = 'return beat["pause_limit"] is not None and beat["paused"] + silent > beat["pause_limit"]'
_SILENT = 'if silent > 5 * beat["interval"]:\n            return silent > 3 * max(5, beat["gap"], *beat["longest"])'
_IDLE = 'return beat["idle"] + silent > 3 * max(5, *beat["longest"])'
_OWN = "own = [rank for rank in late if not beats"
_PLACES = "min(everyone, key=lambda rank: places.count"
_NAMED = 'if name.startswith("step-") and not is_whole(files):'
_SUMS = "[len(files[name]), zlib.crc32(files[name])] == sums[name]"

_LESSON = '''
def what_happened(record):
    """The lesson's rule, of one rank after another."""
    for rank, one in enumerate(record["ranks"]):
        if one["silent"] > 2:
            return {"": "dead", "T": "stopped"}.get(one["process"], "silent"), rank
        if one["beat"]["idle"] + one["silent"] > 2:
            return "hung", rank
    return "healthy", None
'''

_OTHER_WAY_ROUND = '''
import json
import math
import zlib
from collections import Counter


def what_happened(record):
    """Files first, then numbers, then ranks; sets of ranks, and twice the longest step."""
    for folder, files in record["checkpoints"].items():
        if folder[:5] == "step-" and complaints(dict(files)):
            return ["damaged", int(folder[5:])]

    losses = [one["losses"] for one in record["ranks"]]
    for step in sorted(losses[0]):
        wrong = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss[step])]
        after = [loss[later] for loss in losses for later in loss if later > step]
        if wrong and not any(map(math.isfinite, after)):
            return ["not finite", wrong[0]]

    by_end, by_letter = {}, {}
    for rank, one in enumerate(record["ranks"]):
        if one["beat"]["left"]:
            by_end.setdefault(one["beat"]["left"].split()[-1], []).append(rank)
        else:
            by_letter.setdefault(one["process"], []).append(rank)
    for name, ranks in by_end.items():
        if "Memory" in name:
            return ["out of memory", ranks[0]]
    if "SystemExit" in by_end:
        return ["preempted", max(by_end["SystemExit"], key=lambda r: len(record["ranks"][r]["signals"]))]
    for letter, what in (("", "dead"), ("Z", "dead"), ("T", "stopped"), ("t", "stopped")):
        if letter in by_letter:
            return [what, by_letter[letter][0]]

    stands = {}
    for rank, one in enumerate(record["ranks"]):
        beat = one["beat"]
        if beat["left"] or not beat["longest"]:
            continue
        if beat["pausing"]:
            if beat["paused"] + one["silent"] > (beat["pause_limit"] or math.inf):
                return ["hung", rank]
        elif beat["idle"] + one["silent"] > 2 * max(*beat["longest"], beat["gap"], 5):
            stands[rank] = beat["doing"].split(",")[0]
    for rank, doing in stands.items():
        if "waited" not in doing:
            return ["hung", rank]
    if len(stands) == len(record["ranks"]):
        fewest = Counter(stands.values()).most_common()[-1][0]
        return ["hung", next(rank for rank, doing in stands.items() if doing == fewest)]
    return ["healthy", None]


def complaints(files):
    mark = files.pop("complete.json", None)
    if mark is None:
        return ["no mark"]
    said, line = mark.splitlines()
    if int(line.split()[1]) != zlib.crc32(said):
        return ["the mark is not what was written"]
    now = {path: [len(data), zlib.crc32(data)] for path, data in files.items()}
    then = json.loads(said)["files"]
    return [path for path in then if now.get(path) != list(then[path])]
'''

NAMED = "who waits is blamed"
MUTANTS = [
    ("who waits is blamed", "who makes the others wait", ((_OWN, "own = [rank for rank in late if beats"),)),
    ("the lesson's own", "who makes the others wait", _LESSON),
    ("a pause that is announced is a hang", "Do the ranks know why there is no step", ((_PAUSE, "return True"),)),
    ("a stopped rank is dead", "can its process go on by itself", (('return "stopped", rank', 'return "dead", rank'),)),
    ("a zombie lives", "A letter of /proc", (('("", "Z", "X")', '("",)'),)),
    ("silence is a hang", "was it ever so before", ((_SILENT, 'if silent > 2 * beat["interval"]:\n            return True'),)),
    ("ten seconds for every run", "this run's steps", ((_IDLE, 'return beat["idle"] + silent > 10'),)),
    ("before a first step it hangs", "Does anybody know yet", ((' or beat["step"] is None', ""), (_IDLE, 'return beat["idle"] + silent > 3 * max((5, *beat["longest"]))'))),
    ("off by one rank", "who makes the others wait", (('return "hung", own[0]', 'return "hung", own[0] + 1'),)),
    ("the crowd is blamed", "who makes the others wait", ((_PLACES, _PLACES.replace("min", "max")),)),
    ("whoever has no process has died", "With what words", ((_LEFT, ""),)),
    ("any error is the memory's", "Why have all ranks left", ((_OUT, 'if beats[rank]["left"].startswith("raised"):'),)),
    ("rank 0 was asked", "Why have all ranks left", ((_ASKED, "if all("),)),
    ("the log of the start before", "Of which start", (('    return "healthy", None\n', '    for *_, what in record["log"]:\n        if "killed" in what:\n            return "dead", int(what.split()[1])\n    return "healthy", None\n'),)),
    ("rank 0's losses alone", "is a loss not finite for the first time", (("for rank in everyone\n        for step", "for rank in [0]\n        for step"),)),
    ("a step that was left out", "What came after the step", (("if bad and max(bad)[0] == last:", "if bad:"),)),
    ("any mark will do", "For each folder with a checkpoint's name", ((_NAMED, 'if name.startswith("step-") and "complete.json" not in files:'),)),
    ("sizes alone", "as its mark says", ((_SUMS, "len(files[name]) == sums[name][0]"),)),
    ("the mark is believed", "Is the mark itself", (('if end != f"crc32 {zlib.crc32(line)}\\n".encode():', "if not line:"),)),
    ("half a save is a checkpoint", "which folders are something else", ((_NAMED, 'if "step-" in name and not is_whole(files):'), ('int(name.removeprefix("step-"))', "int(name[-8:])"))),
    ("the course's own", "asks you to write that yourself", (("    ranks = record", "    from dtcourse.fault_tolerance import folders\n\n    folders.steps(record)\n    ranks = record"),)),
]  # fmt: skip

NOTHING = [
    ("all is well", '\ndef what_happened(record):\n    return "healthy", None\n'),
    ("always rank 0", '\ndef what_happened(record):\n    return "hung", 0\n'),
    ("none", "\ndef what_happened(record):\n    return None\n"),
]

ACCEPTED = [
    ("the other way round", _OTHER_WAY_ROUND),
    (
        "more patient, and as lists",
        (
            (_IDLE, 'return beat["idle"] + silent > 20 + 2 * max(beat["longest"])'),
            ('return "hung", own[0]', 'return ["hung", own[-1]]'),
        ),
    ),
]
