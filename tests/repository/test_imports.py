"""Who may import whom (design.md, section 1), and what `import dtcourse` costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINT = Path(sys.executable).with_name("lint-imports")

HEAVY = [
    "matplotlib",
    "seaborn",
    "IPython",
    "ipywidgets",
    "pandas",
    "sklearn",
    "papermill",
    "torch",
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # -P: the folder's dtcourse, not another one, is what is looked at
        [LINT, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_go_down_only():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A dtcourse of empty modules, to plant a wrong import in."""
    rooms = (
        "cli course plots models data hybrid data_parallel sharding pipeline_parallel "
        "tensor_parallel sequence_parallel expert_parallel compression asynchronous large_batch "
        "memory fault_tolerance federated heterogeneous verify simulator profiling launch "
        "collectives events device"
    )
    for room in rooms.split():
        (tmp_path / "dtcourse" / room).mkdir(parents=True)
        (tmp_path / "dtcourse" / room / "__init__.py").write_text("")
        (tmp_path / "dtcourse" / room / "inner.py").write_text("")
    (tmp_path / "dtcourse" / "__init__.py").write_text("from dtcourse.launch import launch\n")
    return tmp_path


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("collectives", "from dtcourse.launch import inner"),
        ("device", "import dtcourse.events"),
        ("launch", "import dtcourse.verify.inner"),
        ("verify", "import dtcourse.data_parallel.inner"),
        ("data_parallel", "import dtcourse.sharding.inner"),
        ("tensor_parallel", "import dtcourse.sequence_parallel.inner"),
        ("sharding", "import dtcourse.hybrid.inner"),
        ("sharding", "import dtcourse.models.inner"),
        ("plots", "import dtcourse.sharding.inner"),
        ("plots", "import dtcourse.course.inner"),
        ("models", "import dtcourse.collectives.inner"),
        ("models", "import dtcourse.tensor_parallel.inner"),
        ("data", "def f():\n    import dtcourse.launch.inner"),
        ("launch", "def f():\n    import matplotlib.pyplot"),
        ("simulator", "import ipywidgets"),
        ("hybrid", "from IPython.display import display"),
    ],
)
def test_a_wrong_import_is_refused(house, room, line):
    (house / "dtcourse" / room / "inner.py").write_text(line + "\n")
    done = lint_imports(house)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout + done.stderr


def test_the_right_imports_are_let_pass(house):
    right = {
        "cli": "import dtcourse.course.inner",
        "course": "import dtcourse.plots.inner, IPython",
        "plots": "import dtcourse.events.inner, matplotlib",
        "hybrid": "import dtcourse.sharding.inner, dtcourse.tensor_parallel.inner",
        "sequence_parallel": "import dtcourse.tensor_parallel.inner",
        "sharding": "import dtcourse.verify.inner, dtcourse.collectives.inner",
        "launch": "import dtcourse.collectives.inner, dtcourse.device.inner",
    }
    for room, line in right.items():
        (house / "dtcourse" / room / "inner.py").write_text(line + "\n")
    done = lint_imports(house)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_of_dtcourse_has_a_place_in_the_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = " ".join(contracts["contracts"][0]["layers"])
    placed = set(layers.replace("(", " ").replace(")", " ").replace("|", " ").split())
    for path in (ROOT / "dtcourse").iterdir():
        if path.suffix == ".py" or (path / "__init__.py").exists():
            assert path.stem in placed | {"__init__", "__main__"}, f"{path.name} is in no layer"


@pytest.mark.parametrize("module", ["dtcourse", "dtcourse.launch"])
def test_import_is_light(module):
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_a_rank_loads_neither_pictures_nor_notebooks():
    from dtcourse import launch

    unwanted = [name for name in HEAVY if name != "torch"]

    def loaded(names: list[str]) -> list[str]:
        import sys

        return [name for name in names if name in sys.modules]

    assert list(launch(loaded, 2, unwanted)) == [[], []]
