"""Which tests a run tries: `make test` one fixed set, CI what a change is about and a share of the rest."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import rotation
from tests.course import test_exercises
from tests.notebooks import test_other_world_sizes
from tests.turns import takes_turns

needs_git = pytest.mark.needs("git")
ROOT = rotation.ROOT
HOUR = 3600


def no_git(*arguments: str) -> str:
    raise AssertionError(f"git {arguments} is asked")


def test_make_test_is_one_set_and_asks_neither_git_nor_a_draw(monkeypatch):
    monkeypatch.setattr(rotation, "git", no_git)
    monkeypatch.setenv(rotation.TRIED, "fixed")
    for draw in ("00000000", "00000001", "no hash"):
        monkeypatch.setenv(rotation.DRAW, draw)
        assert all(
            rotation.why_it_waits(place, ("README.md",)).startswith(rotation.NOT_ITS_TURN)
            for place in range(4)
        )


@pytest.mark.parametrize("share", ["all", ""])
def test_all_are_tried_where_that_is_asked_for_or_nothing_is(monkeypatch, share):
    monkeypatch.setattr(rotation, "git", no_git)
    monkeypatch.setenv(rotation.TRIED, share)
    assert not any(rotation.why_it_waits(place, ()) for place in range(4))


def test_ci_tries_what_has_changed_and_of_the_rest_each_in_its_turn(monkeypatch):
    monkeypatch.setenv(rotation.TRIED, "drawn")
    monkeypatch.setattr(rotation, "changed", lambda: ["README.md", "dtcourse/launch/rank.py"])
    tried = []
    for draw in ("1c7e93a0", "1c7e93a1", "1c7e93a2"):
        monkeypatch.setenv(rotation.DRAW, draw)
        assert rotation.why_it_waits(0, ("dtcourse/launch/",)) == ""
        waits = [rotation.why_it_waits(place, ("studies/",), share=(1, 3)) for place in range(6)]
        assert all(why.startswith(rotation.NOT_ITS_TURN) for why in waits if why)
        tried += [place for place, why in enumerate(waits) if not why]
    assert sorted(tried) == list(range(6))
    monkeypatch.setattr(rotation, "changed", lambda: None)
    assert not any(rotation.why_it_waits(place, ("studies/",)) for place in range(6))


def test_what_every_run_tries_comes_first_and_the_many_alike_last_in_an_order_drawn_anew(
    monkeypatch,
):
    many = [(f"many.py::test[{number}]", False, False) for number in range(rotation.MANY + 1)]
    whole = [(f"whole.py::test_{number}", True, False) for number in range(rotation.MANY + 2)]
    always = [("cluster.py::test_z", True, True), ("cluster.py::test_a", True, True)]
    early = [("many.py::named", False, 2)]
    tests = [*many, *whole, *always, *early]
    orders = []
    for drawn in ("0", "1"):
        monkeypatch.setenv(rotation.DRAW, drawn)
        orders.append([tests[number] for number in rotation.order(tests)])
        # A file's own tests without a mark are no variants, however many they are.
        head = [*early, *always, *whole]
        assert orders[-1][: len(head)] == head and sorted(orders[-1]) == sorted(tests)
    assert orders[0] != orders[1] != tests


def test_what_stands_on_a_change_begins_before_all_others(monkeypatch):
    """A run that ends before it came to it would be the last that was asked for it."""
    monkeypatch.setattr(rotation, "changed", lambda: ["lessons/27-x.ipynb"])
    touched, other = ("lessons/27-",), ("lessons/28-",)
    answer = rotation.urgency(touched, False, rotation.HALF)
    assert answer > rotation.urgency(other, True, rotation.ALL)
    assert rotation.urgency(touched, True, rotation.HALF) > answer
    assert rotation.urgency(other, False, rotation.HALF) == 0
    assert rotation.urgency((), False, rotation.ALL) == 1, "it names nothing that could change"


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize(("first", "others"), [(0, 7), (1, 6), (5, 13), (12, 2), (6, 0), (0, 0)])
def test_each_worker_begins_with_its_part_of_what_is_about_a_change(parts, first, others):
    numbers = list(range(first + others))
    order = rotation.dealt(numbers[:first], numbers[first:], parts)
    assert sorted(order) == numbers
    for left in range(parts, 0, -1):  # as xdist's worksteal cuts it
        own, order = order[: len(order) // left], order[len(order) // left :]
        begin = [number for number in own if number < first]
        assert own == sorted(own) and begin == own[: len(begin)]
        assert len(begin) in (first // parts, -(-first // parts))


def test_of_what_has_passed_on_the_bare_machine_every_second_one_waits(monkeypatch, tmp_path):
    tests = [f"tests/data/test_shards.py::test_{number}" for number in range(40)]
    lessons = [f"lessons/{number:02}-a.ipynb" for number in range(20)]
    always = [
        "tests/data/test_shards.py::test_failed",
        "tests/course/test_judging.py::test_a",
        "lessons/26-a.ipynb",
        "tests/cli/test_cli.py::test_grade",
    ]
    outcome = dict.fromkeys(
        [*tests, always[1], always[3], *(f"{one}::Cell 1" for one in [*lessons, always[2]])],
        "passed",
    )
    record = tmp_path / "bare.jsonl"
    lines = [
        {"test": name, "outcome": how} for name, how in (outcome | {always[0]: "failed"}).items()
    ]
    record.write_text(
        "".join(json.dumps(line) + "\n" for line in [{"collected": []}, *lines, {"took": 1}])
    )
    monkeypatch.setenv(rotation.BARE, str(record))
    monkeypatch.setenv(rotation.DRAW, "0")

    def waiting(share: str, draw: str) -> set[str]:
        rotation.passed_bare.cache_clear()
        monkeypatch.setenv(rotation.TRIED, share)
        monkeypatch.setenv(rotation.DRAW, draw)
        return {name for name in [*tests, *lessons, *always] if rotation.why_once_is_enough(name)}

    try:
        first, second = waiting("drawn", "0"), waiting("drawn", "1")
        assert first | second == {*tests, *lessons} and not first & second
        assert len(first) > 15 < len(second)
        assert waiting("fixed", "0") == waiting("all", "0") == set()
        monkeypatch.delenv(rotation.BARE)
        assert waiting("drawn", "0") == set()
    finally:
        rotation.passed_bare.cache_clear()


def test_what_has_not_begun_at_the_end_is_too_late(monkeypatch):
    monkeypatch.delenv(rotation.END, raising=False)
    assert rotation.why_too_late() == ""
    for end, late in ((time.time() + 60, False), (time.time() - 1, True)):
        monkeypatch.setenv(rotation.END, str(end))
        assert rotation.why_too_late().startswith(rotation.NOT_ITS_TURN) == late
    monkeypatch.setattr(rotation, "changed", lambda: ["lessons/27-x.ipynb"])
    assert rotation.LANDED in rotation.why_too_late(("lessons/27-",))
    assert rotation.LANDED not in rotation.why_too_late(("lessons/28-",))


def test_what_is_no_share_or_no_hash_is_said(monkeypatch):
    monkeypatch.setenv(rotation.TRIED, "half")
    with pytest.raises(ValueError, match="half: it is fixed, drawn or all"):
        rotation.why_it_waits(0, ())
    monkeypatch.setenv(rotation.DRAW, "tuesday")
    with pytest.raises(ValueError, match="tuesday: it is a hash"):
        rotation.draw()


# --- git's history ----------------------------------------------------------------------------------------------


@dataclass
class Commit:
    """What a rule may go by: the hash of a commit, its tree's, and the files that have changed lately then."""

    name: str
    tree: str
    changed: list[str]


def landings(folder: Path) -> list[Commit]:
    """The last commit of each push to a repository, as far as its history tells what had changed lately."""
    log = ["git", "log", "--first-parent", "--format=%x00%H %T %ct", "--name-only"]
    done = subprocess.run(log, cwd=folder, capture_output=True, text=True, check=False)
    commits = [block.split() for block in done.stdout.split("\0")[1:]]
    times = [int(time) for _, _, time, *_ in commits]
    found = []
    for here, (name, tree, _, *_) in enumerate(commits):
        if here and times[here] == times[here - 1]:
            continue  # pushed with the one that follows it
        then = times[here] - rotation.HOURS * HOUR
        base = next(
            (i for i in range(here + rotation.LATELY, len(commits)) if times[i] <= then), None
        )
        if base is not None:
            changed = {path for _, _, _, *paths in commits[here:base] for path in paths}
            found.append(Commit(name, tree, sorted(changed)))
    return found


def repository(folder: Path, hours_ago: list[int], paths: list[str] | None = None) -> Path:
    """A repository with a commit for each of these times, each of which changes a file of its own, or one of these."""
    stream = []
    for number, hours in enumerate(hours_ago):
        path = paths[number % len(paths)] if paths else str(number)
        when = f"a <a@b> {1_790_000_000 - hours * HOUR} +0000"
        stream.append(
            f"commit refs/heads/main\ncommitter {when}\ndata 4\nmore\n"
            f"M 644 inline {path}\ndata {len(str(number))}\n{number}\n"
        )
    for words in (
        ["init", "-q", "-b", "main"],
        ["fast-import", "--quiet"],
        ["reset", "-q", "--hard"],
    ):
        subprocess.run(["git", *words], cwd=folder, input="\n".join(stream), text=True, check=True)
    return folder


@pytest.fixture
def at(monkeypatch):
    """Has the rule look at another repository, with nothing kept of what it has found before."""

    def look(folder: Path) -> None:
        monkeypatch.setattr(rotation, "ROOT", folder)
        for name in ("changed", "tree"):
            monkeypatch.setattr(rotation, name, getattr(rotation, name).__wrapped__, raising=True)

    return look


@needs_git
@pytest.mark.parametrize(
    ("hours_ago", "lately"),
    [
        ([9] * 5 + [0] * 4, None),  # of nine commits none is the tenth
        ([20] * 5 + [9] * 10, 10),  # ten at least
        ([9] * 5 + [1] * 12, 12),  # pushed at once
        ([9] * 5 + [4] * 4 + [2] * 3, 10),
    ],
)
def test_what_has_changed_lately_is_all_that_is_pushed_at_once(tmp_path, at, hours_ago, lately):
    at(repository(tmp_path, hours_ago))
    found = rotation.changed()
    assert (found and len(found)) == lately
    assert found is None or landings(tmp_path)[0].changed == sorted(found)


@needs_git
def test_what_has_changed_is_all_since_ci_found_all_good_where_that_is_known(tmp_path, at):
    folder = repository(tmp_path, [20] * 20 + [8] * 5)
    at(folder)
    hashes = subprocess.run(
        ["git", "rev-list", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
    )
    file = folder / ".ci" / "landed"
    file.parent.mkdir()
    own = [".ci/landed"]  # not committed here
    for back in (0, 3, 17):
        for length in (40, 10):
            file.write_text(f"{hashes.stdout.split()[back][:length]}\n", encoding="utf-8")
            assert len(rotation.changed()) == back + len(own)
            begun = f"{hashes.stdout.split()[back][:8]} (.ci/landed)"
            assert rotation.since() == f"{back + 1} files have changed since {begun}."
    by_number = {str(number) for number in range(25 - rotation.LATELY, 25)}
    for unknown in ("", "0" * 40, "no commit"):
        file.write_text(unknown, encoding="utf-8")
        assert set(rotation.changed()) == {*by_number, *own}
        assert "11 files have changed since 10 commits or 3 hours" in rotation.since()


@needs_git
def test_a_file_that_has_moved_has_changed_in_both_places(tmp_path, at):
    """What still imports the old place is about it."""
    at(repository(tmp_path, [20] * 20 + [8] * 5))
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["mv", "3", "moved"], ["commit", "-q", "-m", "moved"]):
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    assert {"3", "moved"} <= set(rotation.changed())


@needs_git
def test_a_name_with_spaces_or_of_another_alphabet_is_one_name(tmp_path, at):
    at(repository(tmp_path, [20] * 20 + [8] * 5))
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["mv", "3", "two words"], ["commit", "-q", "-m", "renamed"]):
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    (tmp_path / "größe").touch()
    assert {"two words", "größe"} <= set(rotation.changed())


@needs_git
def test_two_commits_with_one_tree_draw_the_same_and_another_file_draws_anew(
    tmp_path, at, monkeypatch
):
    monkeypatch.delenv(rotation.DRAW, raising=False)
    at(repository(tmp_path, [2, 1]))

    def after(*words: str) -> tuple[str, str]:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
        return rotation.git("rev-parse", "HEAD"), rotation.draw()

    first, drawn = after("commit", "-q", "--amend", "-m", "in other words")
    assert after("commit", "-q", "--allow-empty", "-m", "nothing")[1] == drawn
    (tmp_path / "new").touch()
    after("add", "new")
    last, other = after("commit", "-q", "-m", "a file")
    assert first != last and drawn != other
    monkeypatch.setenv(rotation.DRAW, drawn)
    assert rotation.draw() == drawn


# --- nothing marked is tried less often than by the rule before -------------------------------------------------

Rule = Callable[
    [Commit, bool], bool
]  # whether something is tried at a landing; whether its own files had changed


@dataclass
class Waits:
    """Something that takes turns: what it stands on, the rule of commit fc6b819 and the one of now."""

    name: str
    files: tuple[str, ...]
    before: Rule
    now: Rule


def all_that_waits() -> list[Waits]:
    """Answers, solutions and lessons with another number of ranks.

    Before, one of three was tried where its own files had not changed (of answers one of nine, where nothing had that
    the checks import), and one of a lesson's two other numbers of ranks, all by the commit's hash.
    """
    found = []

    def add(
        name: str, number: int, files: tuple[str, ...], place: int, **turn: rotation.Share
    ) -> None:
        turn = {"share": rotation.HALF, "lately": rotation.ALL, **turn}

        def before(at: Commit, own: bool) -> bool:
            drawn = int(at.name[:8], 16)
            its_size = turn["lately"] == rotation.ALL or (drawn + place) % 2 == 0
            return its_size and (own or (number + drawn) % 3 == 0)

        def now(at: Commit, own: bool) -> bool:
            return rotation.is_tried(place, ("x",), ["x"] * own, at.tree, **turn)

        found.append(Waits(name, files, before, now))

    kinds = map(test_exercises.every, ("MUTANTS", "NOTHING", "ACCEPTED"))
    for number, one in enumerate(itertools.chain(*kinds, test_other_world_sizes.plan())):
        for mark in one.marks:
            if (
                "early" not in mark.kwargs
            ):  # an exercise's named answer, which every run tried before
                add(one.id, number, mark.args, **mark.kwargs)
    for place, path in enumerate(sorted(ROOT.glob("solutions/*.ipynb"))):
        add(path.name, place, rotation.files_of_solution(path.name), place)
    return found


@pytest.fixture(scope="module")
def waits() -> list[Waits]:
    return all_that_waits()


def test_whatever_the_history_nothing_is_tried_less_often_than_by_the_rule_before(waits):
    """But for what is `early`, which every run tried then. What has no mark had no rule then: every run tried it.

    On average over all hashes, at a landing that has changed its files and at one that has not.
    """
    assert len(waits) > 1000
    any_hash = [Commit(f"{n:08x}", f"{n:08x}", []) for n in range(12)]
    for one in waits:
        for own in (True, False):
            before, now = (sum(rule(at, own) for at in any_hash) for rule in (one.before, one.now))
            assert now >= before, one.name


def replayed(history: list[Commit], waits: list[Waits]) -> dict[str, tuple[int, int]]:
    """{name: how often it was tried over a history by the rule before, and by the one of now}."""
    touched: dict[tuple[str, ...], list[bool]] = {}
    for files in {one.files for one in waits}:
        touched[files] = [any(path.startswith(files) for path in at.changed) for at in history]
    return {
        one.name: tuple(
            sum(map(rule, history, touched[one.files])) for rule in (one.before, one.now)
        )
        for one in waits
    }


@needs_git
@pytest.mark.parametrize("which", ["main", "made for this"])
@takes_turns("tests/rotation.py")
def test_over_the_landings_of_a_real_history_nothing_was_tried_less_often(which, waits, tmp_path):
    """By the hashes that it has. Where main's own is too short to tell (a shallow clone), only the one made is left."""
    folder, enough = ROOT, 200
    if which != "main":
        lessons = [path.name for path in sorted(ROOT.glob("solutions/*.ipynb"))]
        paths = [
            name for lesson in lessons for name in (f"solutions/{lesson}", "README.md", "tools/a")
        ]
        folder = repository(tmp_path, list(range(1000, 0, -2)), paths)
    history = landings(folder)
    if len(history) < enough:
        assert which == "main"
        return
    often = replayed(history, waits)
    lessons = {name[: -len("-2-ranks")] for name in often if name.endswith("-ranks")}
    for lesson in lessons:  # of whose two sizes each is tried by chance in half of the cases
        both = [often.pop(name) for name in [*often] if name.startswith(lesson)]
        often[lesson] = tuple(map(sum, zip(*both, strict=True)))
    assert {name: counts for name, counts in often.items() if counts[1] < counts[0]} == {}
