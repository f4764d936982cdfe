"""Which tests a run tries. DTCOURSE_TEST_SHARE says it:

    fixed    what `make test` tries: every test but those marked `stands_on`. The same set on every machine, with git,
             without it and in a shallow clone.
    drawn    what CI tries (`make test-ci`): every test and lesson that is about something that has changed
             (tests/subjects.py), half of those that use it, and of the others a third. Of the marked ones each where
             something that it stands on has changed, and of the others a share. DTCOURSE_TEST_DRAW draws, which is the
             hash of HEAD's tree: two commits with the same files draw the same.
    all      what `make test-all` tries, and pytest by hand, where nothing is set.

Marked is what there is much of, and more of with each lesson: answers to exercises, lessons with another number of
ranks. Solutions as notebooks wait by the same rule (tools/test.py). What the rule leaves out is deselected, with a
sentence that begins with NOT_ITS_TURN, and tools/test.py counts it.

Changed is what differs from the commit in .ci/landed: whoever begins work writes there the last one that CI has found
good, and nobody checks it. Where that commit is unknown, changed is what the last ten commits or three hours have
brought.

After much work at once most of the marked tests stand on something that has changed, and CI has an end. So they are
a stage of their own, the last one, with a time (DTCOURSE_TEST_TURNS_END) at which those that have not begun wait too:
what is marked `early` comes first, then what every run tries, what few others are like next, and the many that are
alike in an order drawn anew. The other stages have such a time for what is about nothing that has changed: on a slow
machine a run tries less and does not fail for it.

CI runs some tests twice, on a bare machine with Debian's Python (tools/bare_machine.py) and here. Of what has just
passed there every second one waits here, by the same draw; what is other with the programs than without does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from tests.subjects import subjects, used

ROOT = Path(__file__).resolve().parents[1]
TRIED, DRAW = "DTCOURSE_TEST_SHARE", "DTCOURSE_TEST_DRAW"
END = "DTCOURSE_TEST_TURNS_END"  # as time.time() has it; where it is not set there is no end
PARTS = "DTCOURSE_TEST_PARTS"  # how many workers begin with an equal part each, in order (xdist's worksteal)
BARE = "DTCOURSE_TEST_PASSED_BARE"  # the bare machine's record, where all its tests have passed in this run
NOT_ITS_TURN = "not its turn"
Share = tuple[int, int]  # so many of so many
THIRD, HALF, ALL = (1, 3), (1, 2), (1, 1)
# With the programs it is another proof: answers in bubblewrap, a lesson that starts Slurm.
WITH_PROGRAMS = ("tests/course/", "tests/cli/", "lessons/26-")
MANY = 100  # marked tests of one file: from so many on they are variants of a few
LANDED = ".ci/landed"
# Commits, and hours: the longer of the two is more than what is pushed at once.
LATELY, HOURS = 10, 3


def why_it_waits(
    place: int, files: Collection[str], share: Share = HALF, lately: Share = ALL
) -> str:
    """Why a marked test is not tried in this run; empty where it is.

    place:  its number among those that take turns with it
    files:  the files and folders that it stands on, from the repository's top
    share:  how many are drawn where none of these has changed lately,
    lately: and how many where one has
    """
    tried = os.environ.get(TRIED) or "all"
    if tried == "all":
        return ""
    if tried == "fixed":
        return f"{NOT_ITS_TURN}: `make test` is one fixed set, and `make test-all` tries this too"
    if tried != "drawn":
        raise ValueError(f"{TRIED}={tried}: it is fixed, drawn or all")
    if is_tried(place, files, changed(), draw(), share, lately):
        return ""
    return f"{NOT_ITS_TURN}: where nothing has changed lately some are drawn (`make test-all` tries all)"


def is_tried(
    place: int,
    files: Collection[str],
    paths: Collection[str] | None,
    drawn: str,
    share: Share,
    lately: Share,
) -> bool:
    """The rule of `drawn`, for given changes (None: unknown, so everything counts as changed) and a given draw."""
    some, of = lately if touch(paths, files) else share
    return (place + int(drawn[:8], 16)) % of < some


def touch(paths: Collection[str] | None, files: Collection[str]) -> bool:
    """Whether one of the paths is one of the files or lies in one of these folders; so where the paths are unknown."""
    return paths is None or any(path.startswith(tuple(files)) for path in paths)


def why_others_are_enough(test: str) -> str:
    """Why a test without a mark, or a lesson as a whole, waits; empty where it does not.

    test: its node id, or the lesson's name from the repository's top
    """
    if os.environ.get(TRIED) != "drawn":
        return ""
    file = test.partition("::")[0]
    share = HALF if touch(changed(), used(file)) else THIRD
    return why_once_is_enough(test) or why_it_waits(
        zlib.crc32(test.encode()), subjects(file), share
    )


@cache
def is_about_a_change(name: str) -> bool:
    """Whether a test file, or a notebook, is about something that has changed: it waits for no end."""
    return touch(changed(), subjects(name))


def why_once_is_enough(test: str) -> str:
    """Why a test, or a lesson as a whole, that has just passed on the bare machine waits here; empty where it does not.

    test: its node id, or the lesson's name from the repository's top
    """
    twice = test in passed_bare() and not test.startswith(WITH_PROGRAMS)
    if not twice or is_tried(zlib.crc32(test.encode()), (), (), draw(), HALF, HALF):
        return ""
    return f"{NOT_ITS_TURN}: it has just passed on the bare machine (of those every second one is tried here too)"


@cache
def passed_bare() -> frozenset[str]:
    """What has passed on the bare machine in this run: tests by their node ids, lessons as a whole by their names."""
    record = os.environ.get(BARE)
    if not record or os.environ.get(TRIED) != "drawn":
        return frozenset()
    lines = map(json.loads, Path(record).read_text("utf-8").splitlines())
    passed = {line["test"] for line in lines if line.get("outcome") == "passed"}
    return frozenset(passed | {test.partition("::")[0] for test in passed if ".ipynb::" in test})


def why_too_late(files: Collection[str] = ()) -> str:
    """Why a test that may wait, and has not begun by now, does; empty where there is time.

    files: what it stands on, where it is marked
    """
    end = os.environ.get(END)
    if not end or time.time() < float(end):
        return ""
    over = f"{NOT_ITS_TURN}: the time of a run for such tests was over"
    if files and touch(changed(), files):
        # Once that commit is said to be good, nothing asks for these tests any more.
        return f"{over}, and these stand on a change: do not write this commit into {LANDED}"
    return f"{over} (`make test-all` tries all)"


def urgency(files: Collection[str], early: bool, share: Share) -> int:
    """How soon a marked test begins: 3 where a change has touched what it stands on, since its proof would be late for
    ever; and 2 more where it is marked `early`, or 1 where every run tries it. 0: it may well wait.

    files: what its mark names
    """
    touched = bool(files) and touch(changed(), files)
    return 3 * touched + (2 if early else int(share == ALL))


def order(tests: Sequence[tuple[str, bool, int]]) -> list[int]:
    """In which order the marked tests of a run begin: their numbers.

    tests: each one's node id, whether its whole file takes turns (and keeps its own order), and how soon it
           goes (see urgency)
    """
    files = [name.partition("::")[0] for name, *_ in tests]
    alike = Counter(files)

    def key(number: int) -> tuple[object, ...]:
        name, whole, first = tests[number]
        file = files[number]
        own = "" if whole else mixed(name)
        return -first, not whole and alike[file] > MANY, mixed(file), file, own, number

    return sorted(range(len(tests)), key=key)


def dealt(first: Sequence[int], others: Sequence[int], parts: int) -> list[int]:
    """An order of which each part begins with a part of `first`, cut as xdist's worksteal cuts it for its workers.

    A worker that is done takes from the end of another's part: of what may wait.
    """
    found: list[int] = []
    for left in range(parts, 0, -1):
        size, own = (len(first) + len(others)) // left, len(first) // left
        found += [*first[:own], *others[: size - own]]
        first, others = first[own:], others[size - own :]
    return found


def mixed(name: str) -> str:
    """A name's place in the order that this run draws."""
    return hashlib.sha256(f"{draw()} {name}".encode()).hexdigest()


def files_of_solution(name: str) -> tuple[str, ...]:
    """What a notebook of solutions/ stands on first of all."""
    lesson = name.partition("-")[0]
    checks = f"dtcourse/course/checks/lesson_{lesson}_"
    return (f"solutions/{name}", f"exercises/{lesson}-", checks, "requirements.lock")


def draw() -> str:
    """What this run draws by: a hexadecimal number, of which the first eight digits count."""
    drawn = os.environ.get(DRAW) or tree()
    try:
        int(drawn[:8], 16)
    except ValueError:
        raise ValueError(
            f"{DRAW}={drawn}: it is a hash, as an earlier run has printed it"
        ) from None
    return drawn


@cache
def tree() -> str:
    """The hash of HEAD's tree; 0 where there is none."""
    return git("rev-parse", "HEAD^{tree}") or "0"


@cache
def changed() -> list[str] | None:
    """The files that are not as they were when CI last found all good; or, where that is not known, LATELY commits and
    HOURS hours before the last commit. None where that cannot be told either (no git, a shallow clone, so young a
    repository)."""
    by_number = git("rev-parse", "--verify", "-q", f"HEAD~{LATELY}")
    now = int(git("log", "-1", "--format=%ct") or 0)
    by_time = git("rev-list", "-1", f"--before={now - HOURS * 3600}", "HEAD")
    base = landed() or (git("merge-base", by_number, by_time) if by_number and by_time else "")
    if not base:
        return None
    # With -z git quotes no name, and one may have spaces.
    names = (
        git("diff", "-z", "--name-only", "--no-renames", base),
        git("ls-files", "-z", "-o", "--exclude-standard"),
    )
    return [name for some in names for name in some.split("\0") if name]


def landed() -> str:
    """The last commit that CI has found good, if this one stands on it; else empty."""
    file = ROOT / LANDED
    name = file.read_text("utf-8").strip() if file.is_file() else ""
    commit = (
        git("rev-parse", "--verify", "-q", f"{name}^{{commit}}") if name else ""
    )  # of a short hash
    return commit if commit and git("merge-base", commit, "HEAD") == commit else ""


def since() -> str:
    """In words: since which commit how many files have changed."""
    files, commit = changed(), landed()
    if files is None:
        return "What has changed is not known: all counts as changed."
    begun = (
        f"{commit[:8]} ({LANDED})"
        if commit
        else f"{LATELY} commits or {HOURS} hours ({LANDED} tells none)"
    )
    return f"{len(files)} files have changed since {begun}."


def git(*arguments: str) -> str:
    """What git prints; empty where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
