"""Training under the monkey: it comes through with the undisturbed run's bits, and what the monkey does is done."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict

import pytest

from dtcourse.course import survivor
from dtcourse.fault_tolerance import folders
from dtcourse.fault_tolerance.chaos import FROM_FILES, FROM_MEMORY, KINDS, Report, over_all, plan
from dtcourse.fault_tolerance.chaos.faults import BYTES, Reach
from dtcourse.fault_tolerance.chaos.monkey import Monkey
from dtcourse.fault_tolerance.chaos.plans import MOMENTS, Strike
from dtcourse.fault_tolerance.mark import Mark
from dtcourse.fault_tolerance.silence import state
from tests.rotation import ALL

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the monkey needs Linux: /proc and prlimit"
)
# Their plans have all kinds and all moments between them.
EACH = pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/course/survivor.py", share=ALL)
SEEDS = (0, 1, 3, 4, 10)


@pytest.fixture(scope="module")
def small():
    return survivor.Settings(every=20, pace=0.002, stopped=0.5, longest=0.4)


@pytest.fixture(scope="module")
def alone(small):
    return survivor.undisturbed(small)["bits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=EACH) for seed in SEEDS[1:])]
)
def test_it_ends_with_the_bits_of_the_undisturbed_run(small, alone, seed):
    run = survivor.disturbed(small, seed, alone)
    assert run["same"], "\n".join(run["log"])
    assert run["starts"] > 1, "\n".join(run["log"])
    assert 0 < run["useful"] < run["seconds"]


@pytest.mark.slow
@EACH
def test_it_would_be_seen_if_something_were_lost(tmp_path):
    """DDP without the random states of its ranks: started again it draws other dropout masks."""
    settings = survivor.Settings(steps=60, pace=0.02, pause=0.0)

    def forgets(folder, what, settings):
        made = survivor.TrainingState.of

        def without(model, optimizer, own, **keywords):
            own.pop("random")
            return made(model, optimizer, own=own, **keywords)

        survivor.TrainingState.of = without
        return survivor.train(folder, what, settings)

    ends = []
    for number, function in enumerate((survivor.train, survivor.train, forgets)):
        recovery = survivor.recovery_of(tmp_path / f"{number}", "DDP", 0, settings, function)
        strikes = [Strike(10, "step", ("kill",), 0.0)] if number else []
        with Monkey(recovery, strikes, 0):
            (bits,) = set(recovery.run())
        ends.append((bits, recovery.starts))
    (alone, one), (again, two), (forgotten, also_two) = ends
    assert (one, two, also_two) == (1, 2, 2)
    assert again == alone != forgotten


def test_the_five_seeds_have_every_kind_and_every_moment():
    strikes = [strike for seed in SEEDS for strike in plan(seed, 200)]
    assert {kind for strike in strikes for kind in strike.kinds} == {*FROM_FILES}
    assert {strike.moment for strike in strikes} == MOMENTS.keys()
    assert any(len(strike.kinds) == 2 for strike in strikes)


def test_plans_are_drawn_from_the_seed_and_leave_no_kind_out():
    plans = [plan(seed, 200) for seed in range(50)]
    assert plans == [plan(seed, 200) for seed in range(50)]
    assert len({tuple(one) for one in plans}) == 50
    for one in plans:
        places = [strike.at for strike in one]
        assert places == sorted(places) and places[-1] < 150
    kinds = Counter(kind for one in plans for strike in one for kind in strike.kinds)
    assert min(kinds[kind] for kind in FROM_FILES) >= 5 and "pair" not in kinds
    with_copies = [plan(seed, 200, kinds=FROM_MEMORY) for seed in range(0, 50, 4)]
    kinds = Counter(kind for one in with_copies for strike in one for kind in strike.kinds)
    assert kinds.keys() == {*FROM_MEMORY} and kinds["pair"] >= 5 and "preempt" not in kinds
    assert {*FROM_FILES, *FROM_MEMORY} == KINDS.keys()
    with pytest.raises(ValueError, match="3 strikes in 14 steps"):
        plan(0, 14)


# --- each fault, on a process that only sleeps --------------------------------------------------------------------


@pytest.fixture
def reach(tmp_path):
    process = subprocess.Popen(["sleep", "1000"])
    later = []
    made = Reach(
        (0, process.pid), tmp_path, random.Random(0), lambda seconds, act: later.append(act)
    )
    yield made, process, later
    process.kill()
    process.wait()


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "number"), [("kill", signal.SIGKILL), ("preempt", signal.SIGTERM)]
)
def test_it_dies_of_it(reach, kind, number):
    made, process, later = reach
    made = Reach(made.pids, made.folder, made.draw, made.later, preempted=signal.SIGTERM)
    assert KINDS[kind](made, 1) == f"{number.name} to rank 1"
    assert process.wait(60) == -number and not later


def test_a_pair_is_a_rank_and_its_neighbour(reach):
    made, process, _ = reach
    with subprocess.Popen(["sleep", "1000"]) as other:
        pids = (process.pid, 0, 0, other.pid)
        made = Reach(pids, made.folder, made.draw, made.later)
        said = KINDS["pair"](made, 3)  # the last one's copy lies with the first
    assert said == "SIGKILL to rank 3 and to rank 0, which keeps its copy"
    assert process.wait(60) == other.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError, match="it has no neighbour"):
        KINDS["pair"](Reach((process.pid,), made.folder, made.draw, made.later), 0)


def test_a_stopped_one_stays_and_a_delayed_one_goes_on(reach):
    made, process, later = reach
    KINDS["stop"](made, 1)
    wait_until(lambda: state(process.pid) == "T")
    assert not later
    assert KINDS["delay"](made, 1).startswith("SIGSTOP to rank 1, and SIGCONT 0.")
    assert state(process.pid) == "T"
    later[0]()
    wait_until(lambda: state(process.pid) == "S")


def test_a_full_disk_is_full_for_a_while(tmp_path):
    """Of a process that writes a byte more than fits, each time that it is told to."""
    code = (
        "import sys\n"
        f"for number, line in enumerate(sys.stdin):\n"
        f"    with open(f'{{sys.argv[1]}}/{{number}}', 'wb', 0) as file:\n"
        f"        try: print(file.write(bytes({BYTES})) + file.write(b'1'), flush=True)\n"
        f"        except OSError as error: print(error.strerror, flush=True)\n"
    )
    later = []
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def said():
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert said() == str(BYTES + 1)
        made = Reach(
            (process.pid,), tmp_path, random.Random(0), lambda seconds, act: later.append(act)
        )
        KINDS["fill"](made, 0)
        assert said() == "File too large"
        later[0]()
        assert said() == str(BYTES + 1)


@pytest.mark.parametrize("kind", ["flip", "truncate"])
def test_the_newest_checkpoint_is_damaged_and_read(reach, kind):
    made, process, _ = reach
    with pytest.raises(FileNotFoundError, match="there is no checkpoint yet"):
        KINDS[kind](made, 1)
    for step in (10, 20):
        aside = folders.begin(made.folder, step)
        (aside / "weights").write_bytes(bytes(range(256)))
        sums = folders.mark.sums_of(aside, ["weights"])
        folders.finish(aside, Mark(step, sums, {}))
    assert folders.newest(made.folder) == 20
    done = KINDS[kind](made, 1)
    assert "step-00000020/" in done and done.endswith(", and SIGKILL to rank 1")
    assert folders.newest(made.folder) == 10
    assert process.wait(60) == -signal.SIGKILL


# --- the report ---------------------------------------------------------------------------------------------------


class Standing:
    """Of a Recovery, what the monkey looks at: a run that stands at a step, of one rank."""

    def __init__(self, folder, pid, log):
        self.folder, self.pids, self.log = folder, (pid,), log


def test_what_the_monkey_has_not_come_to_is_left_out_and_undone_is_what_it_did(reach):
    from dtcourse.fault_tolerance.run_log import RunLog

    made, process, _ = reach
    (made.folder / folders.name_of(10)).mkdir()
    log = RunLog()
    strikes = [Strike(5, "step", ("delay",), 0.0), Strike(11, "step", ("kill",), 0.0)]
    with Monkey(Standing(made.folder, process.pid, log), strikes, 0, longest=1000.0) as monkey:
        wait_until(lambda: state(process.pid) == "T")
    wait_until(lambda: state(process.pid) == "S")
    assert [(act.kind, act.came_off) for act in monkey.acts] == [("delay", True)]
    assert [entry.who for entry in log.entries] == ["monkey"]


def test_many_runs_in_a_few_lines():
    one = Report(3, 1, {"kill": 1, "stop": 1}, {"step": 1}, 1, 1, 10.0, 4.0, 1.0, 20)
    calm = Report(1, 0, {"delay": 1}, {"save": 1}, 0, 0, 10.0, 6.0, 0.0, 0)
    said = "\n".join(over_all([asdict(one), calm]))
    assert "2 runs, 1 interrupted (50%)" in said
    assert "kill 1, stop 1, delay 1, fill 0" in said
    assert "goodput 50%; 5% in steps taken again (10 a run); 10.0 s a run" in said
