"""Loading data beside a step, measured on this machine: threads and processes, what they compute, hold and cost.

    python studies/loading.py                    # until all is measured; writes studies/results/loading.json
    python studies/loading.py --budget 100       # stop after 100 s; call again to go on where it stopped

Wall-clock times of a machine, unlike the other studies' results: another machine gives others. So that the load of
other programs says little: a repetition measures all settings in an order of its own, ratios are taken within a
repetition, and each run says how many processor seconds other programs took while it lasted (Linux). A run during
which they took more than Settings.others of the machine is made again, up to Settings.tries times; the least
disturbed one is kept. Where `others` is large, times say more about those programs than about loaders.

1. Steps. A batch is made of files, in the way of WORK: "decode" opens JPEG files (pictures that write_pictures makes of
   noise), scales them with Pillow and makes a tensor of them, which holds Python's lock for a small part of the time;
   "Python" reads the same files and counts bytes in a loop of Python's, which holds it all the time. COMPUTE is what
   the step does with the batch: "nothing"; "elsewhere", it waits, as a process does whose GPU computes; "here", it
   multiplies matrices on one core.
   LOADER makes batches: "in turns", in the training loop; "n threads" of Prefetcher; "n processes" of DataLoader.
   A batch is made by one thread or process.

   runs["step | WORK | COMPUTE | LOADER | REPETITION"] =
       batch  seconds per batch, without the first Settings.skipped;  first: seconds to the first one
       busy   processor seconds per batch, of this process and of those that it started
       others share of the machine that other programs took;  load: the load average before

2. Epochs. runs["epochs | kept (started anew) | REPETITION"] = {first: [seconds to each epoch's first batch]}, with two
   processes and persistent_workers=True (False).

3. Stalls. A batch needs Settings.read seconds, each Settings.stalls-th one ten times as long (waiting, two processes),
   and the step waits Settings.elsewhere. runs["stalls | FACTOR | REPETITION"] = {batch: seconds per batch}, with
   prefetch_factor=FACTOR; "4, any order" with in_order=False.

4. Memory. A dataset of Settings.names file names, as a list of Python's strings or as one array, after each of four
   processes has read its share of the names. runs["memory | KIND | REPETITION"] = {private: [MiB of each process that
   it shares with none]}, from /proc (Linux; else nothing is measured).

The file holds every run with settings, machine, date and versions. It is written after each run, and a run that is in
it is not repeated.
"""

from __future__ import annotations

import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from dtcourse.course import curves, results_file
from dtcourse.course.other_programs import processor_seconds, undisturbed
from dtcourse.course.results_file import key
from dtcourse.data import Prefetcher

RESULTS = Path(__file__).parent / "results" / "loading.json"
FORMAT = 1
WORK = ("decode", "Python")
COMPUTE = ("nothing", "elsewhere", "here")
COUNTS = (1, 2, 4)
LOADERS = (
    "in turns",
    *(f"{n} threads" for n in COUNTS),
    *(f"{n} processes" for n in COUNTS),
)
FACTORS = ("1", "2", "4", "8", "4, any order")


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (repetitions may grow)."""

    files: int = 64
    height: int = 375  # pixels of a picture; a width of 4/3 of it
    size: int = 224  # pixels of what the model gets
    counted: int = 40_000  # bytes of a file that "Python" counts
    batch: int = 8
    batches: int = 32  # of a run
    skipped: int = 8
    elsewhere: float = 0.015
    multiplied: int = 512  # rows of a square matrix, multiplied Settings.times times "here"
    times: int = 6
    read: float = 0.010
    stalls: int = 16
    names: int = 1_000_000
    others: float = 0.05
    tries: int = 4


class Pictures(Dataset[torch.Tensor]):
    """Batches of the files in a folder."""

    def __init__(self, folder: Path, work: str, settings: Settings) -> None:
        self.paths = sorted(folder.iterdir())
        self.make = {"decode": self._decode, "Python": self._count}[work]
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.batches

    def __getitem__(self, number: int) -> torch.Tensor:
        start = number * self.settings.batch
        chosen = (
            self.paths[i % len(self.paths)] for i in range(start, start + self.settings.batch)
        )
        return torch.stack([self.make(path.read_bytes()) for path in chosen])

    def _decode(self, raw: bytes) -> torch.Tensor:
        from PIL import Image

        with Image.open(io.BytesIO(raw)) as image:
            width, height = image.size
            left, size = (width - height) // 2, self.settings.size
            cut = image.resize((size, size), box=(left, 0, left + height, height))
        return torch.from_numpy(numpy.array(cut)).permute(2, 0, 1).contiguous()

    def _count(self, raw: bytes) -> torch.Tensor:
        counts = [0] * 256
        for place in range(self.settings.counted):
            counts[raw[place % len(raw)]] += 1
        return torch.tensor(counts)


def write_pictures(folder: Path, settings: Settings) -> None:
    """Noise at seven scales, larger where it is coarser, as in a photograph; JPEG of quality 95."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    width = settings.height * 4 // 3
    for number in range(settings.files):
        total = torch.zeros(1, 3, settings.height, width)
        for scale in range(7):
            noise = torch.randn(1, 3, 3 * 2**scale, 4 * 2**scale, generator=generator)
            total += torch.nn.functional.interpolate(
                noise, (settings.height, width), mode="bilinear"
            ) / (scale + 1)
        total += 0.1 * torch.randn(total.shape, generator=generator)
        pixels = (50 * (total - total.mean()) / total.std() + 128).clamp(0, 255).byte()
        picture = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
        picture.save(folder / f"{number:04d}.jpg", quality=95)


class Stalling(Dataset[int]):
    """Reading waits; now and then ten times as long."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return 4 * self.settings.stalls + self.settings.skipped

    def __getitem__(self, number: int) -> int:
        late = number % self.settings.stalls == self.settings.stalls - 1
        time.sleep(self.settings.read * (10 if late else 1))
        return number


class Names(Dataset[tuple[int, int, float | None]]):
    """What a process holds after it has read a share of the names: its number, and MiB that it shares with none."""

    def __init__(self, kind: str, number: int) -> None:
        names = [f"train/{i % 1000:04d}/{i:08d}.jpg" for i in range(number)]
        self.names: Any = names if kind == "list" else numpy.array(names, dtype="S")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, part: int) -> tuple[int, int, float | None]:
        read = sum(len(self.names[i]) for i in range(part, len(self.names), 4))
        return os.getpid(), read, private_megabytes()


def private_megabytes() -> float | None:
    """Of this process: what it shares with no other; None where the system does not say."""
    mapped = Path("/proc/self/smaps_rollup")
    if not mapped.exists():
        return None
    lines = mapped.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


# --- measuring ---------------------------------------------------------------------------------------------------


def loader(dataset: Dataset[Any], name: str, **options: Any) -> Iterable[Any]:
    """Batches of a dataset whose samples are batches."""
    if name == "in turns":
        return (dataset[i] for i in range(len(dataset)))  # type: ignore[arg-type]
    count, kind = name.split()
    if kind == "threads":
        return Prefetcher(range(len(dataset)), 2 * int(count), dataset.__getitem__, int(count))  # type: ignore[arg-type]
    return DataLoader(dataset, batch_size=None, num_workers=int(count), **options)


def compute(kind: str, settings: Settings) -> Callable[[], None]:
    """What a step does beside the loading."""
    square = torch.randn(settings.multiplied, settings.multiplied)

    def here() -> None:
        for _ in range(settings.times):
            torch.mm(square, square)

    return {
        "nothing": lambda: None,
        "elsewhere": partial(time.sleep, settings.elsewhere),
        "here": here,
    }[kind]


def timed(batches: Iterable[Any], step: Callable[[], None], skipped: int) -> dict[str, Any]:
    """Seconds per batch, processor seconds per batch, and seconds to the first batch."""
    step()
    start, own, came = time.perf_counter(), processor_seconds(), []
    for _ in batches:
        came.append(time.perf_counter() - start)
        step()
    came.append(time.perf_counter() - start)
    del batches
    return {
        "batch": round((came[-1] - came[skipped]) / (len(came) - 1 - skipped), 5),
        "busy": round((processor_seconds() - own) / (len(came) - 1), 5),
        "first": round(came[0], 4),
    }


def steps(folder: Path, work: str, computing: str, name: str, settings: Settings) -> dict[str, Any]:
    """One loader beside one kind of step."""
    batches = loader(Pictures(folder, work, settings), name)
    return timed(batches, compute(computing, settings), settings.skipped)


def epochs(folder: Path, persistent: bool, settings: Settings) -> dict[str, Any]:
    """Seconds to the first batch of three epochs."""
    batches = loader(
        Pictures(folder, "decode", settings), "2 processes", persistent_workers=persistent
    )
    nothing = compute("nothing", settings)
    return {"first": [timed(batches, nothing, 0)["first"] for _ in range(3)]}


def stalls(factor: str, settings: Settings) -> dict[str, Any]:
    """Slow reads beside a step that waits."""
    ahead, *any_order = factor.split(", ")
    batches = loader(
        Stalling(settings), "2 processes", prefetch_factor=int(ahead), in_order=not any_order
    )
    return {"batch": timed(batches, compute("elsewhere", settings), settings.skipped)["batch"]}


def memory(kind: str, settings: Settings) -> dict[str, Any]:
    """MiB that four processes hold apart."""
    dataset = Names(kind, settings.names)
    found = {
        pid: megabytes for pid, _, megabytes in loader(dataset, "4 processes", prefetch_factor=1)
    }
    return {"private": [round(m, 1) for m in found.values() if m is not None]}


def jobs(folder: Path, settings: Settings, seeds: int) -> Iterator[results_file.Job]:
    """Everything, repetition by repetition, each in an order of its own."""
    for seed in range(seeds):
        made: list[results_file.Job] = [
            (
                key("step", work, computing, name, seed),
                partial(steps, folder, work, computing, name, settings),
            )
            for work in WORK
            for computing in COMPUTE
            for name in LOADERS
        ]
        for words, persistent in {"kept": True, "started anew": False}.items():
            made.append((key("epochs", words, seed), partial(epochs, folder, persistent, settings)))
        made += [
            (key("stalls", factor, seed), partial(stalls, factor, settings)) for factor in FACTORS
        ]
        made += [
            (key("memory", kind, seed), partial(memory, kind, settings))
            for kind in ("list", "array")
        ]
        random.Random(seed).shuffle(made)
        for name, run in made:
            yield name, partial(undisturbed, run, settings.others, settings.tries)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_pictures(folder, settings)
            sizes = [file.stat().st_size for file in folder.iterdir()]
            results = load(path, settings) | {
                "file_bytes": round(statistics.mean(sizes)),
                "start_method": torch.multiprocessing.get_start_method(),
            }
            return results_file.run_missing(
                results, path, jobs(folder, settings, seeds), seeds, budget
            )
    finally:
        torch.set_num_threads(threads)


def values(results: dict[str, Any], what: str, *name: str) -> list[Any]:
    """Of each repetition."""
    return [results["runs"][key(*name, seed)][what] for seed in range(results["seeds"])]


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per setting: milliseconds, and how much faster than in turns within a repetition."""
    for work in WORK:
        for computing in COMPUTE:
            base = values(results, "batch", "step", work, computing, "in turns")
            for name in LOADERS:
                found = values(results, "batch", "step", work, computing, name)
                faster = [b / f for b, f in zip(base, found, strict=True)]
                low, high = curves.interval(faster)
                busy = statistics.median(values(results, "busy", "step", work, computing, name))
                others = max(
                    o or 0 for o in values(results, "others", "step", work, computing, name)
                )
                yield (
                    f"{work:8s}{computing:11s}{name:13s}{1e3 * statistics.median(found):7.1f} ms, least "
                    f"{1e3 * min(found):6.1f}, times faster {statistics.median(faster):.2f} ({low:.2f} to {high:.2f})"
                    f"  busy {1e3 * busy:6.1f} ms  others at most {others:.0%}"
                )
    for words in ("kept", "started anew"):
        firsts = zip(*values(results, "first", "epochs", words), strict=True)
        yield f"epochs  {words:14s}first batch after {[round(1e3 * statistics.median(f)) for f in firsts]} ms"
    for factor in FACTORS:
        found = values(results, "batch", "stalls", factor)
        yield f"stalls  prefetch_factor {factor:14s}{1e3 * statistics.median(found):6.1f} ms"
    for kind in ("list", "array"):
        each = [
            megabytes for run in values(results, "private", "memory", kind) for megabytes in run
        ]
        yield f"memory  {kind:8s}" + (
            f"{statistics.median(each):.1f} MiB per process" if each else "not measured"
        )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per setting."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
