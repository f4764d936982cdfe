"""The whole suite, stage by stage; what `make test` runs and what CI shows.

While a stage runs it says how far it is (progress.py). One that fails does not stop the next one. A failure's
traceback is printed when it happens. At the end: the slowest tests and files, why tests were skipped or left out, each
failed test with its exception, what was under way or never started where a stage was cut short, each stage's result and
time, then one line that adds them up. The exit code is 0 only if every stage passed. build/reports/ keeps a record of
each stage, written test by test.

A test that fails is run once more, alone, when all stages have ended (second_try.py). If it passes then, so does its
stage, and the summary has both outputs and an entry for tests/flakes.toml.

    python tools/test.py                 # all stages
    python tools/test.py unit timing     # some stages
    DTCOURSE_TEST_SHARE=drawn ...        # what each tries: fixed (as here), drawn (CI) or all; see tests/rotation.py
    DTCOURSE_TEST_DRAW=1c7e93a2 ...      # the draw of another run, which has printed it
    DTCOURSE_TEST_WORKERS=8 ...          # processes for the stages that run in parallel (3)
    DTCOURSE_TEST_UNTIL=1795000000 ...   # all stages together end by then (seconds, as `date +%s` has them)
    DTCOURSE_TEST_SLOWNESS=4 ...         # how slow the machine is, instead of measuring it
    DTCOURSE_TEST_BARE=0 ...             # tools/bare_machine.py ended so before: into the summary with it
    DTCOURSE_TEST_PYTHON=0 ...           # and tools/other_python.py

Unit tests that take turns are a stage of their own (turns), the last one. In CI each stage has minutes (ENDS) after
which what may wait, and has not begun, waits for another run.

A stage may take three times its usual minutes, and more on a slower or busier machine (machine.py
measures it before each stage). Where there is an end for all, a stage may take all that is left but the later ones'
usual minutes, which no machine is faster than; where that is too little for all, each has its share. One test's limit
follows the machine too.
Ctrl-C and SIGTERM end everything that was started, and the summary is printed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import flakes
import machine
import outcomes
import second_try
from processes import MARK, end_all, mark_of_this_run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests import rotation  # noqa: E402

REPORTS = ROOT / "build" / "reports"
NOTHING_COLLECTED = 5  # pytest's exit code
# One more than a small machine has cores: tests also wait, for a cluster, a browser, a time limit.
WORKERS = os.environ.get("DTCOURSE_TEST_WORKERS") or "3"
ROOM = 3.0  # a stage may take so many times what it usually takes
LEAST = 30.0  # seconds for second tries: with less none is made
LISTED = 10  # slowest tests, and slowest files


# Minutes of each stage on two idle cores, by what the run tries.
USUAL = {
    "fixed": {"unit": 11.5, "timing": 0.5, "notebooks": 3.5, "parameters": 0.5},
    "drawn": {"unit": 8, "timing": 0.5, "notebooks": 5, "parameters": 4, "turns": 2.5},
    "all": {"unit": 11.5, "timing": 0.5, "notebooks": 7, "parameters": 14, "turns": 28},
}
# Minutes of a stage in CI after which what may wait, and has not begun, does: on a slower machine less is tried, and no
# other stage waits for it. What is about a change does not wait, unless it is marked: what takes turns always may, and
# so do notebooks with other parameters.
ENDS = {"unit": 26.0, "notebooks": 16.0, "parameters": 5.0, "turns": 4.0}
LONGEST = 75.0  # seconds that the longest test takes on two idle cores; a notebook says its own


@dataclass
class Stage:
    """One run of pytest: what it is for, what it is given, the minutes that it usually takes, what it leaves out,
    after how many minutes what may wait, and has not begun, does (0: after none), how many seconds its longest test or
    notebook takes on an idle machine, and whether the outputs of tests that pass are kept.
    """

    name: str
    purpose: str
    arguments: list[str]
    usual: float = 1.0
    waiting: Mapping[str, int] = field(default_factory=dict)
    ends: float = 0.0
    longest: float = LONGEST
    outputs: bool = False


@dataclass
class Result:
    """What came of a stage. `cut` says what cut it short; empty where nothing did."""

    stage: Stage
    code: int
    seconds: float
    cut: str = ""
    outcomes: outcomes.Outcomes = field(default_factory=outcomes.Outcomes)

    @property
    def passed(self) -> int:
        return len(self.outcomes.of("passed"))

    @property
    def skipped(self) -> int:
        return len(self.outcomes.of("skipped"))

    @property
    def failed(self) -> int:
        """Tests that failed or were under way when it ended; at least one where the stage itself did not end well."""
        found = len(self.outcomes.of("failed")) + len(self.outcomes.running)
        return max(found, 0 if self.ended_well else 1)

    @property
    def ended_well(self) -> bool:
        return self.code in (0, NOTHING_COLLECTED) and not self.cut and not self.outcomes.not_run

    @property
    def fine(self) -> bool:
        """Passed, or there is nothing of this kind yet."""
        return self.ended_well and not self.failed

    @property
    def state(self) -> str:
        """In words."""
        if self.fine:
            second = len(self.outcomes.second)
            return f"ok, {second} at the second try" if second else "ok"
        words = ["FAILED"]
        if self.cut:
            words.append(self.cut)
        elif self.code != 1:
            words.append(f"pytest ended with {self.code}")
        if self.outcomes.running:
            words.append(f"{len(self.outcomes.running)} under way")
        if self.outcomes.not_run:
            words.append(f"{len(self.outcomes.not_run)} never started")
        return ", ".join(words)


def stages(share: str) -> list[Stage]:
    """All of them, in order. Timing comes alone: a busy second core would spoil what it measures."""
    usual, parallel = USUAL[share], ["-n", WORKERS]
    nbval = ["-ptools.forked_kernels", "-ptools.late_notebooks", "--nbval", "--nbval-current-env"]
    sanitize = ROOT / "tests" / "notebooks" / "sanitize.cfg"
    if sanitize.exists():
        nbval.append(f"--nbval-sanitize-with={sanitize}")
    tried, waiting = notebooks()
    unit = "not timing and not notebooks"
    turns = f"{unit} and stands_on"
    if "turns" in usual:
        unit += " and not stands_on"
    listed = [
        Stage("unit", "unit tests", ["tests", *parallel, "--dist", "worksteal", "-m", unit]),
        Stage(
            "timing",
            "tests that assert wall-clock time, one by one",
            [
                *marked("timing"),
                "-n",
                "1",
                "-m",
                "timing",
            ],  # a worker: a test that hangs ends alone
        ),
        Stage(
            "notebooks",
            "lessons and solutions, their outputs compared with the committed ones",
            [*nbval, *tried, *parallel, "--dist", "loadfile", "--no-loadscope-reorder"],
            waiting=waiting,
        ),
        Stage(
            "parameters",
            "notebooks with other parameters, and under other kernels",
            [*marked("notebooks"), *parallel, "-m", "notebooks and not timing"],
        ),
        Stage(
            "turns",
            "unit tests that take turns",
            # In their order, but for a few of a file at a time, which share what takes long to start.
            ["tests", *parallel, "--maxschedchunk", "8", "-m", turns],
        ),
    ]
    listed = [stage for stage in listed if stage.name in usual]
    for stage in listed:
        stage.usual = usual[stage.name]
        stage.ends = ENDS.get(stage.name, 0.0) if share == "drawn" else 0.0
        if stage.name in ("notebooks", "parameters"):
            stage.longest = max([LONGEST, *map(seconds_of, tried)])
    return [stage for stage in listed if stage.name != "notebooks" or tried]


def marked(name: str) -> list[str]:
    """The files that have such a mark. To collect all of them for a few takes each process half a minute."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT)) for file in files if f"mark.{name}" in file.read_text("utf-8")
    ]


def notebooks() -> tuple[list[str], Counter[str]]:
    """The notebooks to execute in this run, what is about a change first; and why how many are left out: some of the
    solutions, while others are put before the judge (tests/course/test_exercises.py), some of the lessons that are
    about nothing that has changed, or have just run on the bare machine.
    """
    tried, waiting = [], Counter()
    for folder in ("lessons", "solutions"):
        for place, path in enumerate(sorted((ROOT / folder).glob("*.ipynb"))):
            name, why = path.relative_to(ROOT).as_posix(), ""
            if folder == "solutions":
                files = rotation.files_of_solution(path.name)
                why = rotation.why_it_waits(place, files, rotation.THIRD, lately=rotation.HALF)
            else:
                why = rotation.why_others_are_enough(name)
            if why:
                waiting[f"{folder}, {why}"] += 1
            else:
                tried.append(name)
    drawn = os.environ.get(rotation.TRIED) == "drawn"
    # The longest begin first, so that no process is left with one at the end.
    tried.sort(key=lambda name: (drawn and not rotation.is_about_a_change(name), -seconds_of(name)))
    return tried, waiting


def seconds_of(notebook: str) -> float:
    """How long it took when it was last executed; 0 where it does not say."""
    metadata = json.loads((ROOT / notebook).read_text("utf-8")).get("metadata", {})
    return float(metadata.get("dtcourse", {}).get("seconds", 0))


class Stop:
    """Set by Ctrl-C and the signals that ask a program to end; `name` is the signal's, then."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.heard)

    def heard(self, number: int, frame: object) -> None:
        self.number = self.number or number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name if self.number else ""


def limit(stages: Sequence[Stage], slowness: float, until: float | None) -> float:
    """Seconds for the first of the stages that are left.

    slowness: of this machine, now (machine.py)
    until:    when all of them have to be over, as time.time() has it
    """
    first, *later = [stage.usual * 60 for stage in stages]
    if until is None:
        return first * slowness * ROOM
    left = until - time.time()
    # Whoever is cut at the first of these leaves no more than the later ones need at least: the whole would not fit.
    return max(1.0, left - sum(later), left * first / (first + sum(later)))


def last_begins(stage: Stage, seconds: float, slowness: float) -> float:
    """After how many seconds the last test that may wait begins: so early that the longest one comes to its end."""
    return max(0.0, min(stage.ends * 60, seconds / 2, seconds - stage.longest * slowness))


def run(stage: Stage, seconds: float, slowness: float, stop: Stop) -> Result:
    """Run one stage, for at most so many seconds, in a session of its own."""
    record = REPORTS / f"{stage.name}.jsonl"
    report = REPORTS / f"{stage.name}.xml"
    for old in (record, report):
        old.unlink(missing_ok=True)
    print(f"\n== {stage.name}: {stage.purpose} (at most {seconds / 60:.0f} minutes)", flush=True)
    given = [f"--junitxml={report}", *stage.arguments]
    command = outcomes.command(sys.executable, record, given, slowness, stage.outputs)
    mark = mark_of_this_run()
    # tests/conftest.py gives tests with a limit of their own as much more.
    environment = {**os.environ, MARK: mark, "DTCOURSE_TEST_SLOWNESS": f"{slowness:.2f}"}
    if stage.name != "timing":
        environment = machine.PATIENT | environment
    if stage.ends:
        environment[rotation.END] = str(time.time() + last_begins(stage, seconds, slowness))
        if "worksteal" in stage.arguments:
            environment[rotation.PARTS] = str(int(WORKERS) or 1)
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    cut = ""
    while process.poll() is None and not cut:
        if stop.number:
            cut = f"stopped by {stop.name}"
        elif time.monotonic() - started > seconds:
            cut = f"ended at its limit of {seconds:.0f} s"
        else:
            time.sleep(0.1)
    if cut:
        print(f"\n{stage.name}: {cut}.", flush=True)
        end_all(process, mark)
    took = time.monotonic() - started
    return Result(stage, process.wait(), took, cut, outcomes.read(record, took))


def try_again(results: list[Result], slowness: float, until: float | None, stop: Stop) -> None:
    """Run once more what failed, alone, while there is time."""
    end = time.time() + second_try.SECONDS * slowness
    end = min(end, until or end)
    for result in results:
        if result.cut or result.stage.name not in USUAL["all"]:
            continue
        name, left = f"{result.stage.name}-again", end - time.time()

        def again(given: list[str], name: str = name, left: float = left) -> outcomes.Outcomes:
            stage = Stage(name, second_try.PURPOSE, given, outputs=True)
            return run(stage, left, slowness, stop).outcomes

        against = "there is no time left" if left < LEAST else ""
        against = against or (f"stopped by {stop.name}" if stop.number else "")
        result.code, why = second_try.once_more(
            result.outcomes, result.code, result.stage.arguments, again, against
        )
        if why:
            print(f"\n== {name}: no second try: {why}", flush=True)


def summarise(results: list[Result], not_started: list[Stage]) -> None:
    """Print what there is to know, the least important first."""
    finished = {
        (result.stage.name, test): line["seconds"]
        for result in results
        for test, line in result.outcomes.finished.items()
    }
    print("\n== slowest")
    for (name, test), seconds in sorted(finished.items(), key=lambda item: -item[1])[:LISTED]:
        print(f"{seconds:>7.1f} s  {name:<11}{test}")
    print("-- by file")
    for name, seconds in outcomes.by_file(finished)[:LISTED]:
        print(f"{seconds:>7.1f} s  {name}")

    print("\n== skipped")
    for result in results:
        for reason, number in result.outcomes.skips.most_common():
            print(f"{number:>5}  {result.stage.name:<11}{reason}")
            print(f"{'':<18}{result.outcomes.skipped_by(reason)}")

    print("\n== left out")
    for result in results:
        for reason, number in {**result.stage.waiting, **result.outcomes.waiting}.items():
            print(f"{number:>5}  {result.stage.name:<11}{reason}")

    print("\n== passed at the second try")
    for result in results:
        for test, line in result.outcomes.second.items():
            for title, told in (("first", line["first"]), ("second", line)):
                print(f"{result.stage.name:<11}{test}: the {title} try\n{told.get('output', '')}")
    again = [second_try.target(test) for result in results for test in result.outcomes.second]
    if again:
        commit = rotation.git("rev-parse", "--short", "HEAD")
        print("-- for tests/flakes.toml, which whoever works next commits (tools/flakes.py)")
        print(
            *(flakes.entry(test, date.today(), commit) for test in dict.fromkeys(again)), sep="\n"
        )

    print("\n== failed")
    for result in results:
        for test, line in result.outcomes.of("failed").items():
            print(f"{result.stage.name:<11}{test}\n           {line['why']}")
        for test, seconds in result.outcomes.running.items():
            print(f"{result.stage.name:<11}{test}\n           under way for {seconds:.0f} s")
        for line in outcomes.named(result.outcomes.not_run, result.outcomes.seen):
            print(f"{result.stage.name:<11}never started: {line}")

    print("\n== summary")
    for result in results:
        print(
            f"{result.stage.name:<11}{result.passed:>5} passed{result.failed:>4} failed"
            f"{result.skipped:>4} skipped{result.seconds:>7.0f} s  {result.state}"
        )
    for stage in not_started:
        print(f"{stage.name:<11}never started")
    print(
        f"{sum(result.passed for result in results)} passed, "
        f"{sum(result.failed for result in results)} failed, "
        f"{sum(result.skipped for result in results)} skipped",
        flush=True,
    )


# What CI runs before: by the variable with its exit code, its record's name and its purpose.
EARLIER = {
    "DTCOURSE_TEST_BARE": ("bare", "tests where none of the optional programs is"),
    "DTCOURSE_TEST_PYTHON": ("python", "tests on another Python"),
}


def before() -> list[Result]:
    """What was found before this run, where CI has run it."""
    results = []
    for variable, (name, purpose) in EARLIER.items():
        code = os.environ.pop(variable, None)  # of this run, and not of a suite that a test starts
        if code:
            found = outcomes.read(REPORTS / f"{name}.jsonl", 0.0)
            stage = Stage(name, purpose, [], 0)
            results.append(Result(stage, int(code != "0"), found.seconds, outcomes=found))
    return results


def main() -> None:
    """Run the stages named on the command line, or all."""
    share = os.environ.setdefault(rotation.TRIED, "fixed")
    if share not in USUAL:
        sys.exit(f"{rotation.TRIED}={share}: there are {', '.join(USUAL)}.")
    if share == "drawn":
        os.environ[rotation.DRAW] = rotation.draw()
        print(
            f"{rotation.DRAW}={rotation.draw()} draws what this run tries; set so, another draws the same."
        )
        print(rotation.since())
    results = before()
    if share == "drawn" and any(result.stage.name == "bare" and result.fine for result in results):
        os.environ[rotation.BARE] = str(REPORTS / "bare.jsonl")
    left = stages(share)
    names = USUAL[share]  # of which one with nothing to try is not left
    if unknown := [name for name in sys.argv[1:] if name not in names]:
        sys.exit(f"No stage {', '.join(unknown)}; there are {', '.join(names)}.")
    if sys.argv[1:]:
        left = [stage for stage in left if stage.name in sys.argv[1:]]
    end = os.environ.get("DTCOURSE_TEST_UNTIL")
    until = float(end) if end else None

    stop = Stop()
    REPORTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dtcourse-jupyter-") as home:
        # Kernels started here neither read nor write the user's own Jupyter and IPython folders.
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            os.environ[name] = str(Path(home, name.lower()))
        os.environ.setdefault("MPLCONFIGDIR", str(ROOT / ".cache" / "matplotlib"))
        while left and not stop.number:
            given = os.environ.get("DTCOURSE_TEST_SLOWNESS")
            slowness = float(given) if given else machine.slowness(int(WORKERS) or 1)
            print(f"\n{machine.words(slowness)}", flush=True)
            machine.schedule(batch=left[0].name != "timing")
            if not stop.number:
                results.append(run(left[0], limit(left, slowness, until), slowness, stop))
                left.pop(0)
        if not stop.number:
            try_again(results, slowness, until, stop)

    summarise(results, left)
    if stop.number:
        sys.exit(128 + stop.number)
    sys.exit(0 if all(result.fine for result in results) else 1)


if __name__ == "__main__":
    main()
