"""A checkpoint of several files that survives a kill and a power cut at each operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtcourse.checkpoint.files import Operation
from dtcourse.course.checks.lesson_25_fault_tolerance import disk_sessions as disk
from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.fault_tolerance.power_cuts import Left, arrived, outcomes

SURVIVE = Exercise(
    "survive_cuts",
    lesson="25",
    title="A checkpoint that survives",
    takes=("save_all", "newest_whole"),
    target="after a kill before each operation, and after each power cut: the newest checkpoint whose save has "
    "returned, or the one being saved, whole; at most 2 stay",
    forbidden=("dtcourse.fault_tolerance", "torch.distributed.checkpoint"),
)

TOP = Path("/disk")
AFTER = 1100  # saved after a kill
STEPS = [800, 900, 1000]  # in which order, as text?


def _record(answer: Answer) -> tuple[list[Operation], list[int], dict[str, bytes], list[Any]]:
    told, ends, held, finds = answer.call(disk.recorded, STEPS)
    record = [
        Operation(
            kind,
            TOP.joinpath(*path),
            data.encode("latin-1"),
            None if target is None else TOP.joinpath(*target),
        )
        for kind, path, data, target in told
    ]
    there = {name: text.encode("latin-1") for name, text in held.items()}
    return record, list(ends), there, list(finds)


def _flat(left: Left, before: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, what in left.items():
        found |= (
            {before + name: what} if isinstance(what, bytes) else _flat(what, f"{before}{name}/")
        )
    return found


def _right(step: int) -> tuple[int, dict[str, str]]:
    return step, {name: disk.as_text(data) for name, data in disk.content(step).items()}


def _said(got: Any) -> str:
    """What was found, in words."""
    if not isinstance(got, (list, tuple)) or len(got) != 2:
        return "nothing" if got is None else str(got)
    step, held = got
    if step in STEPS or step == AFTER:
        wrong = [name for name, data in _right(step)[1].items() if held.get(name) != data]
        return f"step {step} with {', '.join(wrong)} not as written" if wrong else f"step {step}"
    return f"step {step!r}"


def _is(got: Any, *steps: int) -> bool:
    return isinstance(got, (list, tuple)) and any(
        (got[0], dict(got[1])) == _right(step) for step in steps
    )


def _last_saves(ends: list[int], total: int) -> range:
    """The cuts within the last save: from the end of the one before it."""
    return range(ends[-2], total + 1)


@SURVIVE.check("saved, found, and two stay", points=2)
def check_plain(answer: Answer) -> None:
    """Nothing goes wrong."""
    (nothing,) = answer.call(disk.looked_at, [{}], None)
    require(
        nothing is None,
        f"A first start looks, too: where nothing was saved yet, newest_whole gives {_said(nothing)} for None.",
    )
    record, _, held, finds = _record(answer)
    for step, got in zip(STEPS, finds, strict=True):
        require(_is(got, step), f"After the save of step {step}, newest_whole finds {_said(got)}.")
    try:
        through = _flat(arrived(record, TOP))
    except (KeyError, AssertionError):  # a name that the record does not know
        through = {}
    require(
        through == held,
        "Something was written, renamed or removed past dtcourse.checkpoint.files, or renamed into another folder: its "
        f"record does not lead to the files that are there. There: {sorted(held)[:8]}.",
    )
    models = [name for name in held if name.endswith("model/part-0")]
    require(
        len(models) == 2,
        f"After {len(STEPS)} saves {len(models)} checkpoints are there: the newest 2 are to stay.",
    )


@SURVIVE.check("killed before each operation", points=2, needs=("check_plain",))
def check_kill(answer: Answer) -> None:
    """All that was done stays. And the next save works on what is left."""
    record, ends, _, _ = _record(answer)
    cuts = [cut for cut in _last_saves(ends, len(record)) if cut < len(record)]
    left = [arrived(record[:cut], TOP) for cut in cuts]
    for cut, got in zip(cuts, answer.call(disk.looked_at, left, None), strict=True):
        kind, path = record[cut].kind, record[cut].path.relative_to(TOP)
        require(
            _is(got, *STEPS[-2:]),
            f"Killed before `{kind}` of {path} while step {STEPS[-1]} is saved: newest_whole finds {_said(got)}. Is "
            "there a moment at which the old one is gone, or the new one has its name and not all of its files?",
        )
    for cut, got in zip(cuts, answer.call(disk.looked_at, left, AFTER), strict=True):
        path = record[cut].path.relative_to(TOP)
        require(
            _is(got, AFTER),
            f"Killed before `{record[cut].kind}` of {path}; then a fresh process saves step {AFTER}, and finds "
            f"{_said(got)}. What has the killed save left behind?",
        )


@SURVIVE.check("the power is cut", points=4, needs=("check_plain",))
def check_cut(answer: Answer) -> None:
    """What was not synced may be there or not."""
    record, ends, _, _ = _record(answer)
    cases: list[tuple[int, Left]] = []
    for cut in _last_saves(ends, len(record)):
        cases += [(cut, left) for left in outcomes(record[:cut], TOP, seed=cut)]
    finds = answer.call(disk.looked_at, [left for _, left in cases], None, timeout=60.0)
    # Of saves that have returned first: a name that is never synced shows between two saves, too.
    for (cut, _), got in zip(cases, finds, strict=True):
        if cut in ends:
            step = STEPS[ends.index(cut)]
            require(
                _is(got, step),
                f"save_all has returned for step {step}, the power is cut, and newest_whole may find {_said(got)}. "
                "What makes certain that all new names are on the disk?",
            )
    for (cut, _), got in zip(cases, finds, strict=True):
        require(
            _is(got, *STEPS[-2:]),
            f"The power is cut after operation {cut - ends[-2]} of {len(record) - ends[-2]} of the save of step "
            f"{STEPS[-1]}: newest_whole may find {_said(got)}. Step {STEPS[-2]} was complete. Which names and which "
            "bytes were on the disk for certain when the new name was given, and when the old one went?",
        )


@SURVIVE.check("a byte has changed", points=2, needs=("check_plain",))
def check_damage(answer: Answer) -> None:
    """In any file of the newest one: then the one before."""
    record, _, _, _ = _record(answer)
    whole = _flat(arrived(record, TOP))
    of_old = set(disk.content(STEPS[-2]).values())
    damaged = []
    for name, data in whole.items():
        if data and data not in of_old:
            for place in {0, len(data) // 2, len(data) - 1}:
                changed = bytearray(data)
                changed[place] ^= 1
                damaged.append((name, place, {**whole, name: bytes(changed)}))
    finds = answer.call(disk.looked_at, [_nested(files) for *_, files in damaged], None)
    for (name, place, _), got in zip(damaged, finds, strict=True):
        require(
            _is(got, *STEPS[-2:]),
            f"Byte {place} of {name} has changed on the disk, and newest_whole finds {_said(got)}. What could say that "
            "these are not the bytes that were written?",
        )
    first = {name: files for name, _, files in reversed(damaged)}
    left = [_nested(files) for files in first.values()]
    for name, got in zip(first, answer.call(disk.looked_at, left, STEPS[-1]), strict=True):
        require(
            _is(got, STEPS[-1]),
            f"{name} was damaged, training went on from step {STEPS[-2]} and has saved step {STEPS[-1]} again: "
            f"newest_whole finds {_said(got)}. What stands in the way of the new one?",
        )


def _nested(flat: dict[str, bytes]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, data in flat.items():
        *folders, name = path.split("/")
        inside = tree
        for folder in folders:
            inside = inside.setdefault(folder, {})
        inside[name] = data
    return tree
