"""Who may import whom (design.md, section 1), and what `import dtcourse` costs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
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

# What torch imports when the first optimizer is made or something is compiled.
ON_DEMAND = ["torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "networkx", "scipy"]
WITH_SEABORN = ["seaborn", "pandas", "scipy", "matplotlib.pyplot", "IPython", "ipywidgets"]


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
    return built(tmp_path)


def built(folder: Path) -> Path:
    """An empty file in each room."""
    rooms = (
        "cli course plots models data planner hybrid data_parallel sharding pipeline_parallel "
        "tensor_parallel sequence_parallel expert_parallel compression asynchronous communication_scheduling "
        "large_batch memory fault_tolerance federated heterogeneous debugging parameters checkpoint verify simulator "
        "profiling launch collectives emulation events torch_private device nested plural tensor_bytes attention "
        "grouped_mm lookup streams callers"
    )
    for room in rooms.split():
        (folder / "dtcourse" / room).mkdir(parents=True)
        (folder / "dtcourse" / room / "__init__.py").write_text("")
        (folder / "dtcourse" / room / "inner.py").write_text("")
    (folder / "dtcourse" / "__init__.py").write_text("from dtcourse.launch import launch\n")
    return folder


WRONG = [
    ("collectives", "from dtcourse.launch import inner"),
    ("device", "import dtcourse.events"),
    ("launch", "import dtcourse.verify.inner"),
    ("verify", "import dtcourse.data_parallel.inner"),
    ("data_parallel", "import dtcourse.sharding.inner"),
    ("tensor_parallel", "import dtcourse.sequence_parallel.inner"),
    ("sharding", "import dtcourse.hybrid.inner"),
    ("parameters", "import dtcourse.sharding.inner"),
    ("parameters", "import dtcourse.checkpoint.inner"),
    ("checkpoint", "import dtcourse.memory.inner"),
    ("torch_private", "import dtcourse.parameters.inner"),
    ("sharding", "import dtcourse.models.inner"),
    ("plots", "import dtcourse.sharding.inner"),
    ("plots", "import dtcourse.course.inner"),
    ("models", "import dtcourse.collectives.inner"),
    ("models", "import dtcourse.tensor_parallel.inner"),
    ("data", "def f():\n    import dtcourse.launch.inner"),
    ("launch", "def f():\n    import matplotlib.pyplot"),
    ("simulator", "import ipywidgets"),
    ("hybrid", "from IPython.display import display"),
    ("hybrid", "import dtcourse.planner.inner"),
    ("planner", "import dtcourse.models.inner"),
]


@pytest.fixture(scope="module")
def all_wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of a house with all these imports, each in a file of its own."""
    house = built(tmp_path_factory.mktemp("house"))
    for number, (room, line) in enumerate(WRONG):
        (house / "dtcourse" / room / f"wrong_{number}.py").write_text(line + "\n")
    done = lint_imports(house)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[": ".join(one) for one in WRONG])
def test_a_wrong_import_is_refused(all_wrong, number):
    room, line = WRONG[number]
    module = line.split("import ")[-1] if line.startswith(("import", "def")) else line.split()[1]
    package = module if module.startswith("dtcourse.") else module.partition(".")[0]
    wrong = rf"dtcourse\.{room}\.wrong_{number} -> {re.escape(package)}\b"
    assert re.search(wrong, all_wrong), all_wrong


def test_two_files_that_need_each_other_are_refused(house):
    room = house / "dtcourse" / "sharding"
    (room / "inner.py").write_text("from dtcourse.sharding import outer\n")
    (room / "outer.py").write_text("def f():\n    from dtcourse.sharding import inner\n")
    done = lint_imports(house)
    assert done.returncode == 1 and "cycles" in done.stdout, done.stdout + done.stderr


def test_two_rooms_of_a_package_or_files_of_a_room_that_need_each_other_are_refused(house):
    package = house / "dtcourse" / "compression"
    for room in ("wire", "sparse"):
        (package / room).mkdir()
        for file in ("__init__", "inner", "outer"):
            (package / room / f"{file}.py").write_text("")
    (package / "wire" / "inner.py").write_text("import dtcourse.compression.sparse.inner\n")
    assert lint_imports(house).returncode == 0
    (package / "sparse" / "outer.py").write_text("import dtcourse.compression.wire.outer\n")
    assert "cycles" in lint_imports(house).stdout
    (package / "sparse" / "outer.py").write_text("import dtcourse.compression.sparse.inner\n")
    assert lint_imports(house).returncode == 0
    (package / "sparse" / "inner.py").write_text("import dtcourse.compression.sparse.outer\n")
    assert "cycles" in lint_imports(house).stdout


def test_the_right_imports_are_let_pass(house):
    right = {
        "cli": "import dtcourse.course.inner",
        "course": "import dtcourse.plots.inner, IPython",
        "plots": "import dtcourse.events.inner, matplotlib",
        "hybrid": "import dtcourse.sharding.inner, dtcourse.tensor_parallel.inner",
        "sequence_parallel": "import dtcourse.tensor_parallel.inner",
        "sharding": "import dtcourse.checkpoint.inner, dtcourse.parameters.inner, dtcourse.verify.inner",
        "checkpoint": "import dtcourse.parameters.inner, dtcourse.collectives.inner",
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


def loaded_by(code: str, names: list[str]) -> list[str]:
    """Which of `names` a fresh Python has loaded after `code`."""
    return printed_by(
        f"{code}\nimport sys\nprint(*[name for name in {names} if name in sys.modules])"
    )


def printed_by(code: str) -> list[str]:
    """The words that `code` prints in a fresh Python."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("module", ["dtcourse", "dtcourse.launch", "dtcourse.cli"])
def test_import_is_light(module):
    assert loaded_by(f"import {module}", HEAVY) == []


def test_a_notebook_s_first_launch_loads_torch_and_nothing_beside_it():
    code = "from dtcourse import launch\nlaunch(abs, 1, -1)"
    unwanted = [*(name for name in HEAVY if name != "torch"), *ON_DEMAND]
    assert loaded_by(code, ["torch", *unwanted]) == ["torch"]


def test_techniques_load_nothing_that_only_compiling_or_an_optimizer_wants():
    """torch._dynamo takes as long to import as torch itself, and brings sympy along."""
    rooms = ["data_parallel", "large_batch", "memory", "models", "data", "simulator", "profiling"]
    rooms += ["collectives.ring", "verify", "tensor_parallel"]
    code = "\n".join(f"import dtcourse.{room}" for room in rooms)
    assert loaded_by(code, ON_DEMAND) == []


def test_pictures_load_matplotlib_s_figures_and_none_of_what_seaborn_brings():
    assert loaded_by("from dtcourse import plots", ["matplotlib.figure", *WITH_SEABORN]) == [
        "matplotlib.figure"
    ]


def test_a_rank_loads_nothing_but_the_course_s_own():
    """What else it has came with the process: loaded once, in the server, for all ranks."""
    from dtcourse.launch import server

    # The first launch of a program, whose ranks come from the server itself: the template has the whole course.
    code = """
        import sys
        from dtcourse import launch
        print(*launch(lambda: sorted(sys.modules), 1)[0])
    """
    names = printed_by(textwrap.dedent(code))
    preload = "\n".join(f"import {name}" for name in server.PRELOAD)
    came_along = loaded_by(preload + "\nimport multiprocessing.forkserver", names)
    own = set(names) - set(came_along)
    assert {name for name in own if name.partition(".")[0] != "dtcourse"} <= {"__mp_main__"}


def test_a_rank_has_neither_pictures_nor_notebooks():
    from dtcourse import launch

    unwanted = [name for name in HEAVY if name != "torch"] + WITH_SEABORN

    def loaded(names: list[str]) -> list[str]:
        import sys

        return [name for name in names if name in sys.modules]

    assert list(launch(loaded, 2, unwanted)) == [[], []]
