"""Records of runs, drawn at random: what a watcher, a log and a folder of checkpoints have when somebody comes to look.

    {"log": [(seconds, step, who, what), ...], "ranks": [{"process", "silent", "beat", "signals", "losses"}, ...],
     "checkpoints": {folder: {path: bytes}}}

Beats are made by watched_ranks.py, losses by a small training, checkpoints by the course's own folders and marks.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dtcourse.course.checks.lesson_25b_detect_and_recover.watched_ranks import Story, play
from dtcourse.fault_tolerance import folders, mark
from dtcourse.fault_tolerance.run_log import RunLog, Step
from dtcourse.fault_tolerance.watching import Look

Record = dict[str, Any]
Files = dict[str, dict[str, bytes]]
Right = tuple[str, Any]

EVERY, KEPT = 10, 3  # steps between checkpoints, and how many stay
SILENT, OUT = ("R", "D"), ("OutOfMemoryError", "MemoryError")
MEMORY = Path("/dev/shm")  # the marks are synced, which takes long on a disk
# By what is wrong: the ways in which it comes. Each check has each of them.
WAYS: dict[str, tuple[str, ...]] = {
    "dead": ("gone", "zombie", "in a save"),
    "stopped": ("T", "t", "T"),
    "hung": ("computes", "long pause", "elsewhere", "silent", "computes", "elsewhere"),
    "preempted": ("SIGTERM", "SIGURG", "SIGTERM", "SIGURG"),
    "out of memory": ("OutOfMemoryError", "MemoryError", "peers raise", "peers raise"),
    "damaged": ("flip", "cut", "missing", "no mark", "mark flipped"),
    "not finite": ("nan", "inf", "last step"),
    "healthy": (
        "past", "pause", "first step", "silent", "long step", "returned", "spike", "skipped", "halved", "in a save",
    ),
}  # fmt: skip


def drawn(kind: str, way: str) -> tuple[Record, Right]:
    """A run with something wrong with it, or nothing, and what it is: (what, where)."""
    return made(kind, way)[:2]


def made(kind: str, way: str) -> tuple[Record, Right, Look]:
    """The same, and what the course's own watcher says of its ranks."""
    ranks = random.randint(3, 6)
    # Any rank; but who always says rank 0 is wrong once at least.
    odd = random.randrange(int(way == WAYS[kind][0]), ranks)
    story = _story(kind, way, ranks, odd)
    left, look = play(story)
    done = max((one["beat"]["step"] or 0) for one in left)
    again = kind == "healthy" and way == "in a save"  # an accident of the start before
    # The step after which this start goes on.
    first = random.choice(
        [2 * EVERY, 3 * EVERY] if again or way == "past" else [0, 2 * EVERY, 3 * EVERY]
    )
    for one in left:
        if one["beat"]["step"] is not None:
            one["beat"]["step"] += first
    losses = _losses(kind, way, ranks, odd, first, done)
    for rank, one in enumerate(left):
        one["signals"] = [way] if kind == "preempted" and rank == odd else []
        one["losses"] = losses[rank]
    last = first + done
    steps = list(range(EVERY, last + 1, EVERY))[-KEPT:]
    if kind == "preempted" and last not in steps:
        steps = [*steps, last][-KEPT:]
    checkpoints, damaged = _checkpoints(steps, ranks, kind, way, last, first if again else None)
    record = {
        "log": _log(kind, way, ranks, odd, first, last, again),
        "ranks": left,
        "checkpoints": checkpoints,
    }
    where = {"damaged": damaged, "healthy": None}.get(kind, odd)
    return record, (kind, where), look


def _story(kind: str, way: str, ranks: int, odd: int) -> Story:
    """Of the ranks. Whatever is wrong is so by a wide margin: no threshold decides."""
    interval, typical = random.choice([1.0, 2.0]), random.uniform(0.6, 1.6)
    lengths = [typical * random.uniform(0.8, 1.2) for _ in range(random.randint(12, 18))]
    stall = (random.randrange(3, 9), random.uniform(6, 9)) if random.random() < 0.2 else (-1, 0.0)
    story = Story(ranks, interval, tuple(lengths), odd, "computes", 0.3 * typical, stall=stall)
    late = random.uniform(2, 2.5) * 3 * (max(lengths) + stall[1] + 5)
    if way == "first step":
        return replace(story, lengths=(), seconds=random.uniform(40, 60), stall=(-1, 0.0))
    if way == "long step":  # one took long before, and nobody minds that this one does
        lengths[random.randrange(3, 9)] = 30.0
        return replace(story, lengths=tuple(lengths), seconds=random.uniform(14, 20))
    if kind == "dead":
        letter = "Z" if way == "zombie" else ""
        return replace(story, what="beats no more", letter=letter, seconds=random.uniform(15, 60))
    if kind == "stopped":
        return replace(story, what="beats no more", letter=way, seconds=random.uniform(15, 60))
    if way == "silent":
        letter = random.choice(SILENT)
        if kind == "healthy":  # a busy machine: for a moment its thread gets no turn
            story = replace(story, interval=1.0, stall=(4, 12.0))
            return replace(story, what="beats no more", letter=letter, seconds=4.5)
        return replace(story, what="beats no more", letter=letter, seconds=late)
    if way in ("pause", "long pause"):
        limit = 20.0 if way == "long pause" else random.choice([None, 1000.0])
        return replace(story, what="pauses", limit=limit, seconds=random.uniform(80, 100))
    if kind == "hung":
        what = "waits elsewhere" if way == "elsewhere" else "computes"
        return replace(story, what=what, seconds=late)
    if kind == "preempted" or way == "returned":
        how = "returned" if way == "returned" else "raised SystemExit"
        return replace(story, what="all leave", peers=how, seconds=random.uniform(5, 60))
    if kind == "out of memory":
        raised, peers = (random.choice(OUT), "raised RuntimeError") if "peers" in way else (way, "")
        return replace(story, what=f"raised {raised}", peers=peers, seconds=random.uniform(5, 60))
    return story


def _losses(
    kind: str, way: str, ranks: int, odd: int, first: int, done: int
) -> list[dict[int, float]]:
    """Of each rank, of the last steps: a small data-parallel training, into which a bad batch may come."""
    shown = range(max(0, done - 6), done)
    at = done - 1 if way == "last step" else random.choice(shown[1:-1] or [0])
    found: list[dict[int, float]] = [{} for _ in range(ranks)]
    w = torch.randn(4, dtype=torch.double)
    for step in range(done):
        grads = []
        for rank in range(ranks):
            x, y = torch.randn(8, 4, dtype=torch.double), torch.randn(8, dtype=torch.double)
            if step == at and rank == odd:
                bad = {"not finite": torch.inf if way == "inf" else torch.nan, "healthy": 1.0}
                x[3] *= {"skipped": torch.nan, "spike": 30.0}.get(way, bad.get(kind, 1.0))
            off = x @ w - y
            grads.append(2 / len(x) * x.T @ off)
            if step in shown:
                found[rank][first + step + 1] = float(f"{off.square().mean().item():.5g}")
        mean = torch.stack(grads).mean(0)
        # The guard leaves the step out, if there is one in this run.
        w = w if way == "skipped" and not mean.isfinite().all() else w - 0.05 * mean
    return found


def _log(
    kind: str, way: str, ranks: int, odd: int, first: int, last: int, again: bool
) -> list[tuple[float, int, str, str]]:
    """Lines as Recovery writes them: of a start that failed before, if this one is not the first, and of this one."""
    now, bad = [0.0], random.randrange(ranks)
    log = RunLog(lambda: now[0])

    def add(seconds: float, step: int, who: str, what: str) -> None:
        now[0] += seconds
        if step:
            log.steps.append(Step(step, 0.0, 0.0))
        log.add(who, what)

    add(0.0, 0, "recovery", f"starts {ranks} ranks, without a checkpoint")
    if first:
        before = random.choice(["killed", "stopped"] + ["left"] * (way != "past"))
        if before == "left":
            add(70.0, first, "recovery", "the ranks have left as they were asked to")
        else:
            if before == "stopped":
                add(70.0, first + 3, "recovery", f"stopped: rank {bad} for 2.1 s")
            how = "was killed by SIGKILL (kill -9, or the system ran out of memory)"
            add(9.0, first + 4, "recovery", f"rank {bad} of {ranks} {how}")
            add(0.1, 0, "recovery", "waits for 1 s")
        add(1.0, 0, "recovery", f"starts {ranks} ranks, from the checkpoint after step {first}")
        if again:
            what = f"its step-{first + EVERY:08d} is damaged, and is now damaged-1-step-{first + EVERY:08d}"
            add(1.0, 0, "rank 0", what)
    if way == "skipped":
        add(
            20.0,
            last - 3,
            f"rank {bad}",
            f"not finite on rank {odd}: the loss; the step is left out",
        )
    if way == "halved" or (kind != "out of memory" and random.random() < 0.3):
        what = "out of memory with micro-batches of 16; the step was taken with 8"
        add(3.0, max(first, last - 2), f"rank {random.randrange(ranks)}", what)
    if "peers" in way:  # whoever loses its connection is heard first
        others = [rank for rank in range(ranks) if rank != odd]
        for rank in random.sample(others, len(others)):
            add(0.1, last, f"rank {rank}", "RuntimeError: Connection closed by peer")
    if way == "returned":
        add(1.0, last, "recovery", f"{ranks} ranks returned")
    return [(round(one.seconds, 2), one.step, one.who, one.what) for one in log.entries]


def _checkpoints(
    steps: list[int], ranks: int, kind: str, way: str, last: int, first: int | None
) -> tuple[Files, int | None]:
    """All files of the run's folder by folder, and the step of the checkpoint that is damaged.

    first: where a newer one than that was damaged already, and put aside
    """
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        root = Path(name)
        for step in steps:
            aside = _written(root, step, ranks)
            inside = mark.names_in(aside)
            folders.finish(aside, mark.Mark(step, mark.sums_of(aside, inside), {}))
        bad = random.choice(steps[-2:]) if kind == "damaged" else None
        if bad is not None:
            _damage(root / folders.name_of(bad), way)
        if first is not None:
            copy = root / f"damaged-1-{folders.name_of(first + EVERY)}"
            shutil.copytree(root / folders.name_of(steps[-1]), copy)
            _damage(copy, "flip")
        if way == "in a save" or (kind not in ("damaged", "preempted") and random.random() < 0.3):
            _written(root, last + EVERY - last % EVERY, random.randint(1, ranks))
        return {top.name: _files(top) for top in sorted(root.iterdir())}, bad


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _written(root: Path, step: int, ranks: int) -> Path:
    aside = folders.begin(root, step)
    (aside / "parts").mkdir()
    for rank in range(ranks):
        (aside / "parts" / f"__{rank}_0.distcp").write_bytes(random.randbytes(48))
    return aside


def _damage(folder: Path, way: str) -> None:
    """One file of it, or its mark."""
    path = random.choice(sorted((folder / "parts").iterdir()))
    if "mark" in way:
        path = folder / mark.NAME
    data = bytearray(path.read_bytes())
    if way in ("missing", "no mark"):
        path.unlink()
    elif way == "cut":
        path.write_bytes(data[: random.randrange(len(data))])
    else:
        # Of the mark the last digit of its step, so that it stays JSON, and what it says of the files stays right.
        place = data.index(b"}\n") - 1 if "mark" in way else random.randrange(len(data))
        data[place] ^= 1
        path.write_bytes(data)
