"""Lesson 26's own batch script for torchrun, on two nodes with addresses of their own.

Where nodes meet, torchrun sorts them by address and process id, and the first of them tells all ranks where to meet.
Process ids of two machines have nothing to do with each other, so each order comes in life.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtcourse.course import notebook
from tests.launch.cluster.networks import INTERFACE, two_nodes
from tests.turns import taking_turns

ROOT = Path(__file__).resolve().parents[3]

ABOUT = "lessons/26-clusters.ipynb"
ADDRESSES = ("10.88.0.1", "10.88.0.2")  # in the order in which torchrun sorts them

pytestmark = [pytest.mark.needs("namespaces"), pytest.mark.slow]

TRAIN = """
import json, os
from pathlib import Path
import torch
import torch.distributed as dist

def train(folder, until):
    total = torch.tensor([2 ** dist.get_rank()])
    dist.all_reduce(total)
    told = {name: os.environ[name] for name in ("NODE", "MASTER_ADDR", "GROUP_RANK")}
    Path(folder, f"rank-{dist.get_rank()}").write_text(json.dumps({**told, "total": total.item()}))
"""
# Slurm's commands, as far as the script asks: of two nodes, whose tasks begin in the order of STARTS.
SCONTROL = """
import json, os, sys
nodes = json.loads(os.environ["ADDRESSES"])
said = sorted(nodes) if sys.argv[2] == "hostnames" else [f"   NodeAddr={nodes[sys.argv[3]]} NodeHostName=any"]
sys.stdout.write("".join(line + "\\n" for line in said))  # at once: head reads the first line and goes
"""
SRUN = """
import json, os, subprocess, sys
enter = json.loads(os.environ["ENTER"])
tasks = {}
for node in os.environ["STARTS"].split():
    told = {"SLURMD_NODENAME": node, "NODE": node, "SLURM_NODEID": str(sorted(enter).index(node))}
    tasks[node] = subprocess.Popen([*enter[node], *sys.argv[1:]], env={**os.environ, **told})
print("pids:", json.dumps({node: task.pid for node, task in tasks.items()}), flush=True)
sys.exit(max(task.wait() for task in tasks.values()))
"""


def batch(folder: Path) -> str:
    """The script that the lesson submits."""
    names = {
        "WORK": folder, "PYTHON": sys.executable, "P": 2, "subprocess": subprocess,
        "shlex": shlex, "on_slurm": SimpleNamespace(why="only its text is wanted"),
    }  # fmt: skip
    [cell] = [one for one in notebook.read(ROOT / ABOUT)["cells"] if one["id"] == "torchrun-submit"]
    with redirect_stdout(io.StringIO()):
        exec("".join(cell["source"]), names)
    return names["BATCH"]


@pytest.mark.parametrize(
    ("starts", "first_is"),
    [("n1 n2", "n1"), ("n2 n1", "n1"), *taking_turns(("n1 n2", "n2"), about=ABOUT, several=True)],
)
def test_the_lesson_s_script_runs_in_both_orders(starts, first_is, tmp_path):
    """Of process ids, and of addresses."""
    addresses = dict(zip((first_is, {"n1": "n2", "n2": "n1"}[first_is]), ADDRESSES, strict=True))
    (tmp_path / "train.py").write_text(TRAIN)
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{text}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sh").write_text(batch(tmp_path))
    with two_nodes(addresses) as enter:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "ADDRESSES": json.dumps(addresses),
            "ENTER": json.dumps(enter),
            "STARTS": starts,
        }
        job = subprocess.Popen(
            ["bash", str(tmp_path / "train.sh")], env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said, _ = job.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(
                job.pid, signal.SIGTERM
            )  # torchrun ends its ranks, which have sessions of their own
            said, _ = job.communicate()
    assert job.returncode == 0 and "Traceback" not in said, said
    pids = json.loads(re.search(r"^pids: (.*)", said, re.M)[1])
    assert sorted(pids, key=pids.get) == starts.split()
    told = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)]
    assert [one["total"] for one in told] == [3] * 2
    # The node with the first address has rank 0, and there the ranks meet, whichever node has the torchruns' store.
    assert {one["MASTER_ADDR"] for one in told} == {addresses[first_is]}
