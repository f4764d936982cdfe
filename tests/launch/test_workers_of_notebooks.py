"""What a notebook defines reaches the workers of its DataLoader and of its ranks', however Python starts processes.

A notebook's `__main__` has no file. Nor has that of `python -c`, which is quicker to start than a kernel.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.turns import taking_turns

ROOT = Path(__file__).resolve().parents[2]


def cell(lesson: str, identity: str) -> str:
    """The code of a lesson's cell."""
    [path] = (ROOT / "lessons").glob(f"{lesson}-*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    return "".join(next(one["source"] for one in cells if one["id"] == identity))


# What stands above the two lessons' cells, as far as these use it.
ABOVE = """
import multiprocessing, sys, tempfile, torch, torch.distributed as dist
from torch.utils.data import DataLoader
from dtcourse import data, launch
multiprocessing.set_start_method(sys.argv[1])
multiprocessing.set_forkserver_preload(["torch", "dtcourse.data"])  # else each worker imports them, as a spawned one
P, WHERE = 2, dict(device="cpu")
folder = tempfile.TemporaryDirectory()
batch_files = [f"{folder.name}/{number}.pt" for number in range(3)]
for number, file in enumerate(batch_files):
    torch.save(torch.full((2,), number), file)
"""
# Names of the notebook in what a worker is given, and in what it gives back.
CLASSES = """
from dataclasses import dataclass

@dataclass
class Sample:
    number: int

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return Sample(index)

rows = list(DataLoader(Samples(), 2, num_workers=1, collate_fn=lambda samples: samples[::-1]))
print([[type(sample) is Sample and sample.number for sample in row] for row in rows])
"""


# To a spawned worker all travels as to one of a fork server, which is quicker to start.
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["forkserver", *taking_turns("fork", "spawn", about="dtcourse/launch/")]
)
def test_datasets_of_a_notebook(method):
    code = "\n".join([ABOVE, CLASSES, cell("07b", "real"), cell("07", "break-seed")])
    done = subprocess.run(
        [sys.executable, "-c", code, method],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    classes, batches, *flips = done.stdout.splitlines()
    assert classes == "[[1, 0], [3, 2]]"
    assert batches == "batches that differ: 0 of 3"
    names = [line.split()[0] for line in flips]
    assert names == ["DataLoader", "seeded_by_rank", "ResumableLoader"]
    alike = [len(set(line.split()[1:])) == 1 for line in flips]
    assert alike == [True, False, False]  # what the lesson shows


SCRIPT = """
import multiprocessing, sys
from torch.utils.data import DataLoader
import dtcourse

class Numbers:
    loaded = __name__
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return self.loaded

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(list(DataLoader(Numbers(), num_workers=1)))
"""


def test_a_scripts_classes_come_from_its_file_as_ever(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout == "[['__mp_main__'], ['__mp_main__']]\n", done.stderr
