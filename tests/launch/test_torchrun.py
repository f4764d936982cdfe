"""The way out: the same function under torchrun, on one node and on two, under mpirun, and by srun's names."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import torchrun_command
from dtcourse.launch.__main__ import adopt_scheduler
from tests.launch.settling import LONG_PLAY

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# What a shell has in which Jupyter was started, and nothing that would make a process a rank of something else.
RANK_NAMES = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|SLURM_|OMPI_|TORCHELASTIC_)")
CLEAN = {name: value for name, value in os.environ.items() if not RANK_NAMES.match(name)}
CLEAN |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", CLEAN["PATH"])
    return tmp_path


def shell(command, **environment):
    done = subprocess.run(
        command, shell=isinstance(command, str), capture_output=True, text=True, timeout=240, env=CLEAN | environment
    )  # fmt: skip
    return done.returncode, done.stdout.strip(), done.stderr


TRAIN = """
    import os
    import torch
    import torch.distributed as dist
    from beside import FACTOR

    def step(batch_size=1, timeout=None, backend="function's own", flag=False):
        total = torch.tensor([batch_size * (dist.get_rank() + 1)])
        dist.all_reduce(total)
        return total.item() * FACTOR, timeout, backend, flag, dist.get_backend()

    def nodes():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])))
        return everyone

    def fail():
        raise RuntimeError("on purpose")

    def leave_by_hand():
        dist.destroy_process_group()
        return "left"

    number = 3
"""


@pytest.fixture
def train(folder):
    """train.py, which imports what lies beside it, in another directory than the one that the command runs in."""
    place = folder / "code"
    place.mkdir()
    (place / "beside.py").write_text("FACTOR = 10\n")
    (place / "train.py").write_text(textwrap.dedent(TRAIN))
    return place / "train.py"


# --- functions of a notebook ---------------------------------------------------------------------------------------


def test_the_printed_command_gives_what_launch_gives():
    model = torch.nn.Linear(3, 1)

    class Loss(torch.nn.Module):
        def forward(self, x):
            return x.square().mean()

    def train(steps, rate=0.1):
        import random

        replica = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(replica.parameters(), lr=rate)
        for i in range(steps):
            x = torch.linspace(0, 1, 12).reshape(4, 3) * (dist.get_rank() + 1 + i)
            optimizer.zero_grad()
            Loss()(replica(x)).backward()
            optimizer.step()
        return model.weight.flatten().tolist(), random.random(), torch.get_num_threads()

    command = torchrun_command(train, 2, 3, rate=0.2)
    assert command == "torchrun --standalone --nproc-per-node 2 -m dtcourse.launch train.pkl"
    code, out, errors = shell(command)
    assert code == 0, errors
    assert out == str(launch(train, 2, 3, rate=0.2)[0])


def test_our_own_backend_under_torchrun():
    command = torchrun_command(dist.get_backend, 2, backend="ring", save_to="a folder/which.pkl")
    assert command.endswith("--backend ring 'a folder/which.pkl'")
    code, out, errors = shell(command)
    assert (code, out) == (0, "ring"), errors


# A rank that leaves at once closes its connections, and whoever still forms the group fails ("Gloo connectFullMesh
# failed with ... Connection closed by peer", seen in CI).
SLOWLY_FORMED = """
    import time
    from pathlib import Path
    import torch.distributed as dist
    from dtcourse.collectives.backend import register

    form_group = register.form_group

    def slowly(*args, **kwargs):
        form_group(*args, **kwargs)
        if dist.get_rank() == 0:
            time.sleep(1)
            Path("formed").touch()

    register.form_group = slowly

    def begin():
        assert Path("formed").exists(), "this rank began before rank 0 had its group"
"""


@pytest.mark.parametrize("backend", ["gloo", pytest.param("ring", marks=LONG_PLAY)])
def test_no_rank_begins_before_all_have_formed_the_group(folder, backend):
    (folder / "slowly.py").write_text(textwrap.dedent(SLOWLY_FORMED))
    words = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "dtcourse.launch"]
    code, _, errors = shell([*words, "--backend", backend, "slowly.py:begin"])
    assert code == 0, errors


def test_without_torchrun_on_the_path_the_command_names_this_python(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    words = shlex.split(torchrun_command(dist.get_rank, 1))
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]


def test_several_nodes_need_an_address():
    command = torchrun_command(dist.get_rank, 8, nodes=2)
    assert "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nproc-per-node 4" in command


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((dist.get_rank, 3), {"nodes": 2}, "3 ranks cannot be laid out as 2 nodes"),
        ((dist.get_rank, 0), {}, "world_size is the number of ranks"),
        ((dist.get_rank, 2), {"save_to": "step.py"}, "save_to is the name of a .pkl file"),
        ((dist.get_rank, 2, "too", "much"), {}, "cannot be called so"),
        ((dist.get_rank, 2), {"backend": "pigeon"}, "there is no backend 'pigeon'"),
    ],
)
def test_what_has_no_command(folder, arguments, options, says):
    with pytest.raises(ValueError, match=says):
        torchrun_command(*arguments, **options)
    assert list(folder.iterdir()) == [], "and nothing is written"


def test_what_cannot_be_written_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="the enclosing variable 'lock' is a lock"):
        torchrun_command(lambda: lock, 2)


@pytest.mark.slow
def test_the_command_runs_in_a_cell(tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path))
    printed = []
    try:
        for code in (
            f"import sys; sys.path.insert(0, {str(ROOT)!r})",
            f"import os; os.environ['PYTHONPATH'] = {str(ROOT)!r}",
            "import torch.distributed as dist\nfrom dtcourse.launch import torchrun_command",
            "FACTOR = 5\ndef step(x): return FACTOR * x + dist.get_world_size()",
            "!{torchrun_command(step, 2, 7)}",
        ):
            client.execute_interactive(
                code,
                timeout=240,
                output_hook=lambda m: printed.append(m["content"].get("text", "")),
                allow_stdin=False,
            )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "37" in "".join(printed).split(), printed


# --- functions of a file -------------------------------------------------------------------------------------------


def test_a_function_of_a_file_with_arguments(train):
    """What stands after the target is the function's, also where an option of ours has the same name."""
    code, out, errors = shell(
        f"torchrun --standalone --nproc-per-node 2 -m dtcourse.launch --timeout 60 {train}:step"
        " --batch_size 32 --timeout 0.5 --backend text --flag=True"
    )
    assert code == 0, errors
    assert out == "(960, 0.5, 'text', True, 'gloo')"


def test_two_nodes_on_one_machine(train):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ["torchrun", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
             "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1",
             "-m", "dtcourse.launch", f"{train}:nodes"]  # fmt: skip
    nodes = [
        subprocess.Popen(words, env=CLEAN, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    try:
        outcomes = [node.communicate(timeout=240) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], outcomes
    printed = sorted(out.strip() for out, _ in outcomes)
    assert printed == ["", "[(0, 0), (0, 1), (1, 0), (1, 1)]"], (
        "global rank 0 prints, on whichever node it is"
    )


def test_a_function_that_takes_the_group_down_itself_and_one_that_raises(train):
    left, failed = singles([f"{train}:leave_by_hand"], [f"{train}:fail"])
    assert left[:2] == (0, "left")
    code, _, errors = failed
    assert code == 1
    assert "Traceback" in errors and "RuntimeError: on purpose" in errors


def single(*arguments, **environment):
    """One rank, as torchrun would start it."""
    port = str(free_port())
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return shell([sys.executable, "-m", "dtcourse.launch", *arguments], **rank | environment)


# A Python that has PyTorch loaded is copied for each command: importing it would take most of the time. Of a copy that
# refuses its command, so would taking down what it has loaded.
COPIES = """
    import json, os, runpy, sys, tempfile
    import torch

    done = []
    for arguments, environment in json.load(sys.stdin):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            if not (child := os.fork()):
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.environ.update(environment)
                sys.argv[1:] = arguments
                try:
                    runpy.run_module("dtcourse.launch", run_name="__main__", alter_sys=True)
                except SystemExit as end:
                    if end.code == 2:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(2)
                    raise
                sys.exit()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            words = [os.pread(file.fileno(), 1_000_000, 0).decode() for file in (out, errors)]
            done.append((code, words[0].strip(), words[1]))
    print(json.dumps(done))
"""


def singles(*commands):
    """One rank after the other, each as `single` starts it; a command may end with its own environment."""
    asked = []
    for words in commands:
        own = words[-1] if isinstance(words[-1], dict) else {}
        rank = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        asked.append(([word for word in words if word is not own], rank | own))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COPIES)], input=json.dumps(asked), env=CLEAN,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(each) for each in json.loads(done.stdout)]


BAD_TARGETS = [
    (["train.py"], "'train.py' does not read file.py:function"),
    (["nowhere.py:step"], "there is no file nowhere.py"),
    (["nowhere.pkl"], "there is no file nowhere.pkl"),
    (["broken.pkl"], "broken.pkl cannot be read here (UnpicklingError: "),
    (["code/train.py:walk"], "code/train.py has no function walk"),
    (["code/train.py:number"], "code/train.py has no function number"),
    (["code/train.py:step", "--colour", "red"], "step cannot be called so: got an unexpected keyword argument "
        "'colour'"),
    (["code/train.py:step", "--batch_size"], "--batch_size has no value"),
    (["code/train.py:step", "32"], "'32': arguments of the function read --name value"),
    (["--backend", "pigeon", "code/train.py:step"], "there is no backend 'pigeon'; known are gloo, nccl, mpi, "),
]  # fmt: skip


def test_a_bad_target_gets_one_clear_sentence(train, folder):
    (folder / "broken.pkl").write_bytes(b"no pickle")
    second = {"RANK": "1", "WORLD_SIZE": "2"}
    commands = [arguments for arguments, _ in BAD_TARGETS]
    found = singles(*commands, *([*arguments, second] for arguments in commands))
    assert len(found) == 2 * len(BAD_TARGETS)
    for (arguments, says), (code, out, errors) in zip(BAD_TARGETS, found, strict=False):
        assert (code, out) == (2, ""), arguments
        assert errors.startswith(f"python -m dtcourse.launch: error: {says}")
        assert len(errors.splitlines()) == 1
    one_of_all_says_it = [(2, "", "")] * len(BAD_TARGETS)
    assert found[len(BAD_TARGETS) :] == one_of_all_says_it


def test_outside_torchrun_it_says_how_to_start_it(train):
    code, _, errors = shell([sys.executable, "-m", "dtcourse.launch", f"{train}:step"])
    assert code == 2
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this with torchrun" in errors


# --- srun and mpirun -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "local_size"), [(0, "4"), (1, "4"), (2, "3")])
def test_names_of_slurm_are_adopted(node, local_size):
    """Eleven tasks on three nodes, as srun describes them;
    SLURM_NTASKS_PER_NODE is there only where it was asked for."""
    given = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "11", "SLURM_NODEID": str(node),
             "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_TASKS_PER_NODE": "8(x3)"}  # fmt: skip
    environment = dict(given)
    adopt_scheduler(environment)
    adopted = {name: value for name, value in environment.items() if name not in given}
    assert adopted == {
        "RANK": "9", "WORLD_SIZE": "11", "LOCAL_RANK": "1", "GROUP_RANK": str(node),
        "LOCAL_WORLD_SIZE": local_size,
    }  # fmt: skip


def test_what_torchrun_said_stands_inside_a_slurm_job():
    environment = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }
    said = dict(environment)
    environment |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
                    "SLURM_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
    adopt_scheduler(environment)
    assert {name: environment[name] for name in said} == said


def test_a_rank_that_srun_started_runs(train):
    code, out, errors = shell(
        [sys.executable, "-m", "dtcourse.launch", f"{train}:step", "--batch-size", "4"],
        SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_LOCALID="0", SLURM_NODEID="0",
        SLURM_TASKS_PER_NODE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    assert code == 0, errors
    assert out.startswith("(40, ")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.needs("mpirun")
def test_ranks_that_mpirun_started_run(train):
    ranks = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        sys.executable,
        "-m",
        "dtcourse.launch",
    ]
    code, out, errors = shell(
        [*ranks, f"{train}:step", "--batch_size", "4"],
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    assert code == 0, errors
    assert out.startswith("(120, ")


LEAVES = """
    import atexit
    from pathlib import Path
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def say():
        threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        print("threads of gloo:", [name for name in threads if "gloo" in name])

    def step():
        atexit.register(say)
        DistributedDataParallel(torch.nn.Linear(2, 2))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed on Linux only")
def test_no_thread_of_the_group_is_left_when_python_ends(folder):
    """What is imported after the group was formed keeps the group,
    and a thread of gloo's may then abort the process."""
    (folder / "leaves.py").write_text(textwrap.dedent(LEAVES))
    code, said, errors = single("leaves.py:step")
    assert (code, said) == (0, "threads of gloo: []"), errors
