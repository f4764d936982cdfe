"""Each lesson's outputs are the committed ones under other kernels too: what it prints, and concludes from, holds on
another processor.

ATen without vector instructions (which also draws other last bits of random numbers), oneDNN with SSE4.1 alone, and
MKL's branch for any processor: each changes sums on the processors that we know. CI tries a few lessons per run, by
the draw, and more of those that have just changed; `make test-all` tries all (tests/rotation.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    # Its limit of instructions (MKL_ENABLE_INSTRUCTIONS) changes nothing on AMD's processors.
    "MKL_CBWR": "COMPATIBLE",
}
LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))
ONE_OF_18, ONE_OF_6 = (1, 18), (1, 6)
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with=tests/notebooks/sanitize.cfg"]


def under_other_kernels(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A Python, and all that it starts."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, **KERNELS}, capture_output=True, text=True, check=False
    )  # fmt: skip


def compared(notebook: Path) -> subprocess.CompletedProcess[str]:
    """nbval's run of a notebook, as `make test` does it."""
    patient = ["--nbval-cell-timeout=400", "--nbval-kernel-startup-timeout=300", "--timeout=550"]
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return under_other_kernels("-m", "pytest", *plain, *NBVAL, *patient, notebook)


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "lesson",
    [
        pytest.param(
            lesson,
            id=lesson.stem,
            marks=pytest.mark.stands_on(
                f"lessons/{lesson.name}", place=place, share=ONE_OF_18, lately=ONE_OF_6
            ),
        )
        for place, lesson in enumerate(LESSONS)
    ],
)
def test_a_lesson_prints_the_same(lesson: Path) -> None:
    done = compared(lesson)
    assert done.returncode == 0, done.stdout + done.stderr


RANKS = """
    import os
    import torch
    from dtcourse import launch

    def kernels():
        return torch.backends.cpu.get_cpu_capability(), [os.environ.get(name) for name in {names}]

    for _ in range(2):  # ranks of the server, and spare ones
        print(*launch(kernels, 2), sep="\\n")
"""


def test_ranks_have_the_kernels_of_their_notebook(tmp_path):
    (tmp_path / "ranks.py").write_text(textwrap.dedent(RANKS.format(names=list(KERNELS))))
    done = under_other_kernels(tmp_path / "ranks.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(("DEFAULT", list(KERNELS.values())))] * 4


SUM = """
import torch
torch.manual_seed(0)
print(torch.randn(10000).{what})
"""


@pytest.mark.notebooks
def test_the_comparison_notices_digits_of_a_processor(tmp_path):
    """Executed with this processor's kernels: as it is printed decides."""
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor's own kernels are the plain ones")
    outcomes = {}
    for what in ("sum().item()", "sum().round().item()"):
        cell = nbformat.v4.new_code_cell(SUM.format(what=what))
        path = tmp_path / f"{len(outcomes)}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
        subprocess.run(
            [sys.executable, "-m", "jupyter", "execute", "--inplace", str(path)], check=True, capture_output=True
        )  # fmt: skip
        outcomes[what] = compared(path).returncode
    assert list(outcomes.values()) == [1, 0]
