"""Launching ranks from a notebook: dtcourse against what else there is, in pairs, in one run.

    python benchmarks/launch.py                        # writes benchmarks/results/launch.json
    python benchmarks/launch.py --only spawn --rounds 9 --against OLD    # and with the dtcourse/ in folder OLD

The work: four ranks that form a gloo group, all-reduce one number and return. Each launcher has a "notebook" of its
own, a process that has imported PyTorch and has launched once before (torch.multiprocessing.spawn gains nothing from
that). They are measured in turns (dtcourse, spawn, dtcourse, accelerate, ...), so that a machine whose speed drifts
does the same to both; what is reported is the median of the pairs' ratios. A second part does the same with a function
that imports two of the course's packages, as those of the lessons do: half a second after the launch before, as a
reader would, and at once, as Run All does; and, with --against, holds this version of the course against another one,
also in a loop over numbers of ranks and in the first launches of a script. A third part launches after the
notebook has run a multi-threaded backward pass, as any notebook has that trained a model: does the launch come back?

Two of them do not do the same thing. ipyparallel is measured with its engines running, which stay alive from launch to
launch; accelerate's notebook_launcher forks the notebook. Only fresh processes start without the state that the cells
before have left. The other launchers are pyproject's group `bench`
(pip install --group bench); one that is not installed is skipped and named.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

RANKS = 4
LOOP = (1, 2, 4, 8)  # ranks of a loop's launches
FIRST = 10  # launches of a script, from its start: what waits for the next one is being made
PAUSE = 0.5  # seconds between a reader's launches, at least
AGAINST = ("half_a_second_between", "back_to_back", "loop", "first_launch", "next_launches")
WARM_UP = 20  # launches, in which what waits for the next one (launch/template.py) is made
ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "launch.json"


# --- what the ranks do ---------------------------------------------------------------------------------------------


def reduce() -> float:
    """Forms the group where the launcher has not, and adds up rank + 1 over all ranks."""
    import torch
    import torch.distributed as dist

    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    if ours:
        dist.destroy_process_group()
    return total.item()


def course() -> float:
    """The same, by a function that imports two of the course's packages, as a lesson's does."""
    import dtcourse.data_parallel
    import dtcourse.models  # noqa: F401

    return reduce()


def train() -> float:
    """The same, and a training step large enough for several threads, as a notebook's reader would launch."""
    backward()
    return reduce()


def backward() -> None:
    """A backward pass on more than one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(max(2, os.cpu_count() or 2))
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    model(torch.randn(256, 512)).sum().backward()


# --- the launchers: each starts, and returns what launches a function once and returns every rank's result ------------


def dtcourse() -> Callable[..., list[float]]:
    from dtcourse import launch

    return lambda function, ranks=RANKS: list(launch(function, ranks))


def spawn() -> Callable[..., list[float]]:
    import torch.multiprocessing as mp

    def once(function: Callable[[], float]) -> list[float]:
        answers = mp.get_context("spawn").SimpleQueue()
        mp.spawn(spawned, args=(function, free_port(), answers), nprocs=RANKS)
        return [answers.get() for _ in range(RANKS)]

    return once


def spawned(rank: int, function: Callable[[], float], port: int, answers: Any) -> None:
    name_ranks(rank, port)
    answers.put(function())


def accelerate() -> Callable[..., list[float]]:
    import torch.multiprocessing as mp
    from accelerate import notebook_launcher

    def once(function: Callable[[], float]) -> list[float]:
        answers = mp.get_context("fork").SimpleQueue()
        notebook_launcher(
            lambda: answers.put(function()), num_processes=RANKS, use_port=str(free_port())
        )
        return [answers.get() for _ in range(RANKS)]

    return once


def torchrunx() -> Callable[..., list[float]]:
    import torchrunx

    def once(function: Callable[[], float]) -> list[float]:
        launcher = torchrunx.Launcher(
            hostnames=["localhost"], workers_per_host=RANKS, backend="gloo"
        )
        return list(launcher.run(function).results["localhost"])

    return once


def ipyparallel() -> Callable[..., list[float]]:
    import atexit

    import ipyparallel as ipp

    cluster = ipp.Cluster(n=RANKS, log_level=40)
    engines = cluster.start_and_connect_sync()
    atexit.register(cluster.stop_cluster_sync)
    view = engines[:]
    view.use_cloudpickle()

    def once(function: Callable[[], float]) -> list[float]:
        port = free_port()
        handles = [engines[rank].apply_async(engine, function, rank, port) for rank in range(RANKS)]
        return [handle.get() for handle in handles]

    return once


def engine(function: Callable[[], float], rank: int, port: int) -> float:
    name_ranks(rank, port)
    return function()


def name_ranks(rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


LAUNCHERS = {f.__name__: f for f in (dtcourse, spawn, accelerate, torchrunx, ipyparallel)}
PROCESSES = {
    "dtcourse": "fresh",
    "spawn": "fresh",
    "accelerate": "forks of the notebook, with all its state",
    "torchrunx": "fresh",
    "ipyparallel": "kept alive from launch to launch, with all their state",
}


# --- a notebook, and what it is asked to do ------------------------------------------------------------------------


def serve(name: str) -> None:
    """The notebook's process: reads commands from its input, and answers each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)  # what launchers and ranks print goes elsewhere
    import torch  # noqa: F401  # every notebook has

    once = LAUNCHERS[name]()
    for command in sys.stdin:
        start = time.perf_counter()
        try:
            if command.strip() == "backward":
                backward()
            elif command.strip() == "loop":
                for ranks in LOOP:
                    results = once(course, ranks)
                    assert results == [sum(range(1, ranks + 1))] * ranks, results
            else:
                works = {"reduce": reduce, "course": course, "train": train}
                results = once(works[command.strip()])
                assert results == [sum(range(1, RANKS + 1))] * RANKS, results
            outcome = "ok"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        print(
            json.dumps({"outcome": outcome, "seconds": time.perf_counter() - start}),
            file=answers,
            flush=True,
        )


class Notebook:
    """A process that serves one launcher, with the dtcourse/ in folder `package`."""

    def __init__(self, name: str, package: Path = ROOT) -> None:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "TP_SOCKET_IFNAME": loopback}
        environment["PYTHONPATH"] = str(package)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def ask(self, command: str, limit: float) -> dict[str, Any]:
        """What came of the command, and its seconds; outcome "deadlock" where it did not come back in `limit`."""
        assert self.process.stdin is not None, "a pipe"
        assert self.process.stdout is not None, "a pipe"
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        if not ready:
            return {"outcome": "deadlock", "seconds": limit}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return {"outcome": f"its notebook ended: {last}", "seconds": 0.0}

    def seconds(self, command: str, limit: float, after: float = 0.0) -> float:
        """What the command takes, `after` seconds from now. RuntimeError where it fails."""
        time.sleep(after)
        answer = self.ask(command, limit)
        if answer["outcome"] != "ok":
            raise RuntimeError(f"{self.process.args[-1]} failed: {answer['outcome']}")  # type: ignore[index]
        return answer["seconds"]

    def close(self) -> None:
        """Lets the launcher clean up; ends what is left of it, and of all that it started."""
        family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        assert self.process.stdin is not None, "a pipe"
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.errors.close()


def time_pairs(names: list[str], rounds: int, limit: float) -> dict[str, Any]:
    """{launcher: the pairs' ratios to dtcourse, their median} for all others, measured in turns with dtcourse.

    A launcher that once fails, or takes longer than `limit` seconds, is measured no further, and its row says so.
    """
    notebooks = {name: Notebook(name) for name in names}
    rows: dict[str, dict[str, Any]] = {
        name: {"processes": PROCESSES[name], "version": version(name), "pairs": []}
        for name in names
        if name != "dtcourse"
    }

    def ours() -> float:
        return notebooks["dtcourse"].seconds("reduce", limit)

    try:
        cold = ours()
        for name in rows:
            notebooks[name].ask("reduce", 2 * limit)
        warm = []
        for _ in range(rounds):
            for name, row in rows.items():
                if "failed" in row:
                    continue
                # The median of three, since it is so much shorter than what it is held against.
                warm.append(statistics.median(ours() for _ in range(3)))
                answer = notebooks[name].ask("reduce", limit)
                if answer["outcome"] == "ok":
                    row["pairs"].append(round(answer["seconds"] / warm[-1], 1))
                else:
                    row["failed"] = answer["outcome"]
        for row in rows.values():
            if row["pairs"]:
                row["times_as_long_as_dtcourse"] = round(statistics.median(row["pairs"]), 1)
        first = cold / statistics.median(warm or [ours()])
        return {"warm": rows, "first_launch_of_dtcourse_in_warm_ones": round(first, 1)}
    finally:
        for notebook in notebooks.values():
            notebook.close()


def time_imports(rounds: int, limit: float, other: Path | None) -> dict[str, Any]:
    """Pairs of launches of a function that imports two of the course's packages.

    "spawn", "spawn_back_to_back": its time over ours, with a pause before ours and without;
    "half_a_second_between", "back_to_back", "loop": our time over that of folder `other`.
    """
    notebooks = {"dtcourse": Notebook("dtcourse"), "spawn": Notebook("spawn")}
    if other is not None:
        notebooks["other"] = Notebook("dtcourse", other)
    try:
        for name, notebook in notebooks.items():
            for _ in range(1 if name == "spawn" else WARM_UP):
                notebook.seconds("course", 2 * limit, after=PAUSE)

        def middle(name: str, pause: float, work: str = "course") -> float:
            """The median of five launches, or loops; the one before them only ends what came before."""
            notebooks[name].seconds(work, limit, after=PAUSE)
            return statistics.median(
                notebooks[name].seconds(work, limit, after=pause) for _ in range(5)
            )

        pairs: dict[str, list[float]] = {"spawn": [], "spawn_back_to_back": []}
        ours: list[float] = []
        at_once: list[float] = []
        for _ in range(rounds):
            ours.append(middle("dtcourse", PAUSE))
            theirs = notebooks["spawn"].seconds("course", limit)
            at_once.append(middle("dtcourse", 0.0))
            pairs["spawn"].append(theirs / ours[-1])
            pairs["spawn_back_to_back"].append(theirs / at_once[-1])
        if other is not None:
            for name, pause, work in (
                ("half_a_second_between", PAUSE, "course"),
                ("back_to_back", 0.0, "course"),
                ("loop", 0.0, "loop"),
            ):
                pairs[name] = [
                    middle("dtcourse", pause, work) / middle("other", pause, work)
                    for _ in range(rounds)
                ]
    finally:
        for notebook in notebooks.values():
            notebook.close()
    rows = {
        name: {"pairs": [round(p, 2) for p in found], "median": round(statistics.median(found), 2)}
        for name, found in pairs.items()
    }
    seconds = {"seconds": ours, "seconds_back_to_back": at_once}
    return {**{name: round(statistics.median(s), 3) for name, s in seconds.items()}, **rows}


def time_starts(rounds: int, limit: float, other: Path) -> dict[str, Any]:
    """Scripts that launch FIRST times, one launch after the other: pairs of ours and one with folder `other`.

    "first_launch", "next_launches": seconds, the medians; and our time over that of `other`.
    """
    seconds: dict[str, list[tuple[float, float]]] = {"first_launch": [], "next_launches": []}
    for _ in range(rounds):
        found = []
        for package in (ROOT, other):
            notebook = Notebook("dtcourse", package)
            try:
                found.append([notebook.seconds("course", limit) for _ in range(FIRST)])
            finally:
                notebook.close()
        seconds["first_launch"].append((found[0][0], found[1][0]))
        seconds["next_launches"].append((sum(found[0][1:]), sum(found[1][1:])))
    return {name: compared(pairs, "ours", "other") for name, pairs in seconds.items()}


def compared(pairs: list[tuple[float, float]], first: str, second: str) -> dict[str, Any]:
    """The medians of what `first` and `second` took, in seconds; and the one over the other, by pair and the median."""
    return {
        first: round(statistics.median(a for a, _ in pairs), 2),
        second: round(statistics.median(b for _, b in pairs), 2),
        "pairs": [round(a / b, 2) for a, b in pairs],
        "median": round(statistics.median(a / b for a, b in pairs), 2),
    }


# What comes after the import, or the launch, is not measured.
IMPORT_ALONE = """
import os
import torch

os._exit(0)
"""
LAUNCH_FIRST = """
import os
from dtcourse import launch

def reduce():
    import torch
    import torch.distributed as dist

    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    return total.item()

assert list(launch(reduce, {ranks}, device="cpu")) == [{total}] * {ranks}
os._exit(0)
"""


def time_first(rounds: int) -> dict[str, Any]:
    """A script that launches, over one that only imports torch, both from the start of a process.

    Once as it is and once with PYTHONDONTWRITEBYTECODE, as many containers have it; the course's own compiled files are
    taken away before each launch of that second kind, since they could not have been written there.
    """
    launches = LAUNCH_FIRST.format(ranks=RANKS, total=float(sum(range(1, RANKS + 1))))

    def seconds(text: str, **environment: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", text], env=os.environ | environment, check=True)
        return time.perf_counter() - start

    found = {}
    for name, environment in (
        ("as_it_is", {}),
        # Files that are to be written nowhere, and are looked for where there are none.
        ("no_compiled_files_of_the_course", {"PYTHONDONTWRITEBYTECODE": "1"}),
    ):
        pairs = []
        for _ in range(rounds):
            alone = seconds(IMPORT_ALONE, **environment)
            with without_compiled(ROOT / "dtcourse") if environment else nullcontext():
                pairs.append((seconds(launches, **environment), alone))
        found[name] = compared(pairs, "launch", "import_torch")
    return found


@contextmanager
def without_compiled(package: Path) -> Iterator[None]:
    """`package` has no compiled files within; they come back."""
    with tempfile.TemporaryDirectory(dir=package.parent, prefix=".compiled-") as aside:
        moved = []
        for number, folder in enumerate(package.rglob("__pycache__")):
            moved.append((folder, Path(aside) / str(number)))
            folder.rename(moved[-1][1])
        try:
            yield
        finally:
            for folder, kept in moved:
                if folder.exists():
                    shutil.rmtree(folder)
                kept.rename(folder)


def after_backward(names: list[str], tries: int, limit: float) -> dict[str, list[str]]:
    """{launcher: outcome of each try}: a fresh notebook, a backward pass in it, and a launch that trains."""
    outcomes: dict[str, list[str]] = {}
    for name in names:
        outcomes[name] = []
        for _ in range(tries):
            notebook = Notebook(name)
            try:
                notebook.ask("backward", limit)
                outcomes[name].append(notebook.ask("train", limit)["outcome"])
            finally:
                notebook.close()
        print(f"  {name}: {', '.join(outcomes[name])}", flush=True)
    return outcomes


def version(name: str) -> str:
    return importlib.metadata.version("torch" if name == "spawn" else name)


def machine() -> dict[str, Any]:
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measures, prints a line a launcher, and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="pairs a launcher")
    parser.add_argument(
        "--tries",
        type=int,
        default=4,
        help="launches after a backward pass, each in a fresh notebook",
    )
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds after which a launch is a deadlock"
    )
    parser.add_argument(
        "--only", nargs="*", choices=[n for n in LAUNCHERS if n != "dtcourse"], help="against these"
    )
    parser.add_argument("--against", type=Path, help="a folder with another version's dtcourse/")
    parser.add_argument("--save-to", type=Path, default=RESULTS)
    parser.add_argument("--serve", choices=LAUNCHERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.serve)

    names, skipped = ["dtcourse"], {}
    for name in asked.only if asked.only is not None else [n for n in LAUNCHERS if n != "dtcourse"]:
        if name == "spawn" or importlib.util.find_spec(name):
            names.append(name)
        else:
            skipped[name] = f"{name} is not installed: pip install {name}"
            print(f"skipped: {skipped[name]}")
    report: dict[str, Any] = {
        "what": f"{RANKS} ranks form a gloo group, all-reduce and return; medians of {asked.rounds} paired ratios",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        **time_pairs(names, asked.rounds, asked.limit),
    }
    for name, row in report["warm"].items():
        times = row.get("times_as_long_as_dtcourse", "an unknown number of")
        line = f"{name} {row['version']} takes {times} times as long as dtcourse; its processes are {row['processes']}"
        print(line + (f" ({row['failed']} once warm)" if "failed" in row else ""))
    print(
        f"dtcourse's first launch takes {report['first_launch_of_dtcourse_in_warm_ones']} times a later one"
    )
    report["imports"] = time_imports(asked.rounds, asked.limit, asked.against)
    found = report["imports"]
    print(
        f"with two of the course's packages imported: {found['seconds']:.3f} s, "
        f"and spawn takes {found['spawn']['median']} times as long; back to back "
        f"{found['seconds_back_to_back']:.3f} s, and {found['spawn_back_to_back']['median']} times"
    )
    report["first"] = time_first(asked.rounds)
    for name, row in report["first"].items():
        print(
            f"a script's first launch takes {row['median']} times as long as `import torch` in a process of its own "
            f"({row['launch']:.2f} s and {row['import_torch']:.2f} s): {name.replace('_', ' ')}"
        )
    if asked.against:
        report["starts"] = time_starts(asked.rounds, asked.limit, asked.against)
        for name, row in {**found, **report["starts"]}.items():
            if name in AGAINST:
                words = name.replace("_", " ")
                print(f"  {row['median']} of the time with {asked.against}: {words}")
    print(
        f"after a multi-threaded backward pass in the notebook, limit {asked.limit:g} s:",
        flush=True,
    )
    report["after_backward"] = after_backward(names, asked.tries, asked.limit)
    report["skipped"] = skipped
    report["machine"]["load_after"] = round(os.getloadavg()[0], 1)
    asked.save_to.parent.mkdir(parents=True, exist_ok=True)
    partial = asked.save_to.with_name(asked.save_to.name + ".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(asked.save_to)
    return None


if __name__ == "__main__":
    main()
