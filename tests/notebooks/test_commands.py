"""Every command that a lesson or an exercise shows is run as it stands there, in a copy of the course's folder.

Where it says two nodes, two of them run here, each of which believes that it is one. What stands for something of the
reader's is put in: a name for HOST, and with it a port that is free. A command that nothing here runs fails the test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dtcourse.course import grading, places, workspace
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests import optional_programs
from tests.notebooks.commands import Printed, defined, is_command, needed, printed
from tests.turns import takes_turns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [path for kind in ("lessons", "solutions") for path in places.notebooks(kind).values()]
# Each command once, with one of the places that show it.
PRINTED = {one.command: one for path in NOTEBOOKS for one in printed(path)}
OF_STUDIES = [text for text in PRINTED if text.startswith("python studies/")]
OF_GALLERY = [text for text in PRINTED if re.match(r"python (gallery/|.* gallery$)", text)]
OF_TORCHRUN = [
    text
    for text in PRINTED
    if ("torchrun" in text or text.startswith("python ")) and text not in OF_STUDIES + OF_GALLERY
]
OF_STUDENTS = [text for text in PRINTED if re.fullmatch(r"dtcourse (start|check) \d\d[a-z]?", text)]
OF_CLUSTER = [text for text in PRINTED if re.match(r"dtcourse (submit|jobs) ", text)]
BENCH = "dtcourse bench collectives"
LISTS = "dtcourse framework list"  # tests/cli/test_frameworks.py runs it
NOT_HERE = dict.fromkeys(("nvidia-smi topo -m", "nvidia-smi topo -p2p r"), "nvidia-smi")

# What a command prints when it has done its work, by the function or script that it runs. Once, whatever the nodes.
SAYS = {
    "build/02-token-ring.pkl": r"^\[0, 0, 1, 1\]$",
    "lessons/scripts/06b_data_parallel.py": r"^epoch 1: loss \d\.\d+, \d+ right$",
    "lessons/scripts/06b_single_device.py": r"^epoch 1: loss \d\.\d+, \d+ right$",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course's folder, as a reader has it; names with a space are allowed, and one is here."""
    return laid_out(tmp_path_factory.mktemp("the course"))


def laid_out(folder: Path) -> Path:
    for name in ("lessons", "exercises", "solutions", "studies", "gallery"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "pyproject.toml").touch()
    return folder


def environment(course: Path, **more: str) -> dict[str, str]:
    """Of a terminal in which the environment is active, on a machine without a GPU and without another network."""
    names = re.compile(
        r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|SLURM_|OMPI_|TORCHELASTIC_|DTCOURSE_HOME)"
    )
    clean = {name: value for name, value in os.environ.items() if not names.match(name)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean |= {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "DTCOURSE_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    clean |= {
        "PET_LOCAL_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    # PET_LOCAL_ADDR is torchrun's --local-addr: this machine's name may lead nowhere
    return clean | more


def shell(course: Path, command: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, shell=True, cwd=course, env=environment(course, **more), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(nodes: list[subprocess.Popen[str]]) -> str:
    """What all of them printed; each must end well."""
    try:
        said = [node.communicate(timeout=300) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, 9)
    if any(node.returncode for node in nodes):  # whole, which pytest would cut
        pytest.fail(
            "\n".join(
                f"{node.returncode}\n{out}\n{err}"
                for node, (out, err) in zip(nodes, said, strict=True)
            )
        )
    return "".join(out for out, _ in said)


# --- nothing is left out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", PRINTED)
def test_something_here_runs_it(command):
    one = PRINTED[command]
    known = [
        *OF_TORCHRUN,
        *OF_GALLERY,
        *OF_STUDIES,
        *OF_STUDENTS,
        *OF_CLUSTER,
        *NOT_HERE,
        BENCH,
        LISTS,
    ]
    assert command in known, (
        f"{one.notebook.name}, cell {one.cell}, shows `{command}`, and nothing runs it"
    )


def test_commands_are_found():
    lessons = {places.number_of(one.notebook.name) for one in PRINTED.values()}
    assert {"01", "02", "04", "06b"} <= lessons and len(OF_TORCHRUN) >= 4 and len(OF_STUDENTS) >= 20


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("torchrun", False),
        ("python -m torch.distributed.run", False),
        ("torchrun, 2 ranks on 1 node: [0, 0]", False),
        ("make_model(x)", False),
        ("torchrun ... train.py", True),
        ("make lab", True),
        ("NCCL_DEBUG=INFO torchrun train.py", True),
        ("srun --nodes 2 torchrun a.py", True),
        (".venv/bin/python -m torch.distributed.run a.py", True),
        ("NCCL_ALGO=Ring", False),
    ],
)
def test_what_counts_as_a_command(text, whether):
    assert is_command(text) is whether


# --- torchrun, srun, python -----------------------------------------------------------------------------------------


# test_migration_scripts.py starts the scripts of lesson 06b too, by `make test`.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            text,
            marks=takes_turns("lessons/", "dtcourse/launch/") if "lessons/scripts/" in text else (),
        )
        for text in OF_TORCHRUN
    ],
)
def test_it_runs_as_printed(course, command):
    [target] = [word for word in SAYS if word in command]
    prepare(course, PRINTED[command], target)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    typed = command.replace("HOST:29500", f"127.0.0.1:{port}")
    count = re.search(r"--nnodes (\d+)", command)
    nodes = int(count[1]) if count else 1
    assert (typed != command) == (nodes > 1), (
        "several nodes need a place to meet, which stands for HOST"
    )
    if typed.startswith("srun "):
        started = [shell(course, line, **task) for line, task in tasks_of_srun(typed)]
    else:
        started = [shell(course, typed) for _ in range(nodes)]
    assert len(started) == nodes
    out = finish(started)
    assert len(re.findall(SAYS[target], out, re.MULTILINE)) == 1, out


def prepare(course: Path, one: Printed, target: str) -> None:
    """Makes the file that a command starts, as its reader has it by then: by the lesson's own code."""
    if target.startswith("lessons/"):
        return
    code = needed(one.notebook, one.cell)  # the cell that prints the command writes the file
    done = shell(course, shlex.join([sys.executable, "-c", code]))
    said = [shlex.split(line) for line in finish([done]).splitlines() if is_command(line)]
    # Quoted otherwise where the folder's name has a space.
    assert shlex.split(one.command) in said
    assert (course / target).is_file()


def tasks_of_srun(command: str) -> list[tuple[str, dict[str, str]]]:
    """What srun would start on each node, and the variables by which it tells each task where it is.

    Not srun itself, which needs a Slurm: the fixture that starts one comes with lesson 26.
    """
    match = re.fullmatch(r"srun --nodes (\d+) --ntasks-per-node 1 (torchrun .*)", command)
    assert match, f"this form of srun is not known here: {command}"
    nodes = int(match[1])
    common = {
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": match[1],
        "SLURM_NTASKS": match[1],
        "SLURM_NPROCS": match[1],
    }
    common |= {"SLURM_TASKS_PER_NODE": f"1(x{nodes})", "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})"}
    return [
        (match[2], common | {"SLURM_PROCID": str(i), "SLURM_NODEID": str(i), "SLURM_LOCALID": "0"})
        for i in range(nodes)
    ]


@pytest.mark.parametrize("command", OF_STUDIES)
@takes_turns("studies/")
def test_a_study_begins_as_printed(course, command):
    """Its first seconds: whole, it measures for minutes."""
    finish([shell(course, f"{command} --budget 3")])
    results = course / shlex.split(command)[-1]
    assert json.loads(results.read_text())["runs"]


@pytest.mark.parametrize("command", OF_GALLERY)
def test_the_gallery_answers_as_printed(course, command):
    out = finish([shell(course, command.replace("NAME", "mean_of_means"))])
    assert re.search(r"^gradients +On rank 0, |^mean_of_means +silently wrong ", out, re.MULTILINE)


# --- the course's own -----------------------------------------------------------------------------------------------


def test_students_get_their_copies_and_their_answers(course, monkeypatch):
    """What each `start` calls; `check` as far as finding the copy and its exercises, and one of them to its end."""
    numbers = sorted({text.split()[-1] for text in OF_STUDENTS})
    for number in numbers:
        assert f"dtcourse start {number}" in PRINTED and f"dtcourse check {number}" in PRINTED
    monkeypatch.setenv("DTCOURSE_HOME", str(course))
    for number in numbers:
        workspace.start(number)
    for number in numbers:
        found, path = workspace.find(number)
        assert found == number and path.is_file() and grading.exercises_of(number)
    done = shell(course, "dtcourse check 03")
    out, errors = done.communicate(timeout=500)
    assert done.returncode == 1, out + errors  # nothing is written yet
    assert re.search(r"0 of \d+ exercises, 0 of \d+ points\.", out)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            number,
            marks=()
            if place == 0
            else pytest.mark.stands_on(
                "dtcourse/cli/",
                "dtcourse/course/workspace.py",
                f"lessons/{number}-",
                f"solutions/{number}-",
                place=place,
            ),
        )
        for place, number in enumerate(sorted({text.split()[-1] for text in OF_STUDENTS}))
    ],
)
def test_a_student_starts_a_lesson_as_printed(number, tmp_path):
    course = laid_out(tmp_path)
    finish([shell(course, f"dtcourse start {number}")])
    assert len([*course.glob(f"my/{number}-*.ipynb")]) == 2


@pytest.mark.slurm
def test_jobs_are_submitted_and_followed(course, tmp_path):
    """Lesson 26's commands, on a Slurm of two nodes: its train() is the function,
    and each job is followed to its end."""
    assert OF_CLUSTER
    (course / "train.py").write_text(
        defined(PRINTED[OF_CLUSTER[0]].notebook, ("write_down", "train"))
    )
    (tmp_path / "cluster.toml").write_text(f'folder = "{tmp_path}/jobs"')
    with ThrowawaySlurm(nodes=2, cpus=4) as slurm:
        around = {
            "SLURM_CONF": str(slurm.configuration),
            "DTCOURSE_CLUSTER": str(tmp_path / "cluster.toml"),
        }
        submitted = [text for text in OF_CLUSTER if text.startswith("dtcourse submit ")]
        followed = [text for text in OF_CLUSTER if text not in submitted]
        assert submitted and [re.sub(r"\d+", "N", text) for text in followed] == ["dtcourse jobs N"]
        for command in submitted:
            said = finish([shell(course, command, **around)])
            [number] = re.findall(r"^job (\d+): train\(", said, re.MULTILINE)
            done = finish([shell(course, re.sub(r"\d+", number, followed[0]), **around)])
            assert "rank 0 returned None" in done
        assert (course / "checkpoint.pt").is_file()


@takes_turns("dtcourse/cli/bench.py", "dtcourse/profiling/", "dtcourse/collectives/")
def test_the_benchmark_of_collectives(course):
    out = finish([shell(course, BENCH)])
    for backend in ("gloo", "naive", "ring", "tree"):
        assert re.search(rf"all_reduce\s+4\s+{backend}\s", out), out


@pytest.mark.parametrize("command", NOT_HERE)
def test_what_needs_another_machine(course, command):
    assert command in PRINTED
    optional_programs.require(NOT_HERE[command])
    finish([shell(course, command)])


# --- files that lessons name ----------------------------------------------------------------------------------------


def test_the_files_of_the_course_that_lessons_name_are_there():
    from dtcourse.course import notebook as nbfile

    named = {
        (path.name, file)
        for path in NOTEBOOKS
        for cell in nbfile.read(path)["cells"]
        if cell["cell_type"] == "markdown"
        for file in re.findall(
            r"`((?:lessons|benchmarks|gallery|studies|tools|dtcourse)/[\w/.-]+)`", cell["source"]
        )
    }
    assert len(named) >= 2
    assert [one for one in sorted(named) if not (ROOT / one[1]).exists()] == []
