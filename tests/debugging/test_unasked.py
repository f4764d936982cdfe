"""The tools that watch unasked: of a program that does unusual things rightly they say nothing; two that no script has.

Each program is one launch, with all tools watching.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from dtcourse.debugging.gallery import WATCHES, running

HEALTHY = '''
import pathlib, py_compile
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.v, self.drop = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3), torch.nn.Dropout(0.5)

    def forward(self, x):
        scores = self.q(x) @ x.T
        hidden = torch.ones_like(scores).triu(1).bool()
        return self.drop(self.v(x)) + scores.masked_fill(hidden, float("-inf")).softmax(-1) @ x[:, :3]


def trains(model, x, steps=5):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    kept = []
    for step in range(steps):
        loss = model(x).square().mean()
        (loss * (float("inf") if step == 1 else 1.0)).backward()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        if finite:  # as a loss scaler skips a step
            optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
    return kept


def gathers_round(block):
    """A ring, of blocks that all need."""
    rank, size = dist.get_rank(), dist.get_world_size()
    have = [block]
    for _ in range(size - 1):
        incoming = torch.empty_like(block)
        request = dist.isend(have[-1], (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        request.wait()
        have.append(incoming)
    return have


def step():
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Attends())
    torch.manual_seed(1 + rank)
    trains(model, torch.randn(5, 6))
    torch.manual_seed(2)  # parallel halves of one layer: one input, one mask
    part = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(6, 4))
    torch.nn.init.normal_(part[1].weight, generator=torch.Generator().manual_seed(rank))
    torch.nn.init.zeros_(part[1].bias)
    part(torch.ones(3, 6)).square().sum().backward()
    torch.optim.SGD(part.parameters(), lr=0.1).step()
    sharded = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
    fully_shard(sharded)
    torch.manual_seed(1 + rank)
    trains(sharded, torch.randn(4, 6))
    data = TensorDataset(torch.randn(12, 6))
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=2, sampler=sampler):
            sharded(x)
    have = gathers_round(torch.randn(6))
    torch.save(have, f"rank-{rank}.pt")
    if rank == 0:
        torch.save(have, "all.pt")
    with pathlib.Path("log").open("a") as log:
        log.write(f"{rank}\\n")
    if rank == 0:
        pathlib.Path("of_their_own.py").write_text("def two():\\n    return 2\\n")
    dist.barrier()
    py_compile.compile("of_their_own.py")  # as an import does it
    still = torch.optim.SGD(part.parameters(), lr=0.0)
    for _ in range(5):  # a message in each step, of which nothing is kept
        gathers_round(torch.randn(400))
        part(torch.ones(3, 6)).square().sum().backward()
        still.step()
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    return {"have": have}
'''

NUMBERS = """
import torch, torch.distributed as dist

def step():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3) * dist.get_rank()
    x = x / x.sum()  # zero on rank 0
    model(x).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
"""

FILES = """
import torch, torch.distributed as dist

def step():
    torch.save({"a": 1}, "last.pt")
"""


def sentences(text, ranks):
    with running.as_file("program.py", text) as file:
        outcome = running.run(file, ranks, list(WATCHES), 60)
    assert outcome.end == "ended", outcome.failure
    assert outcome.seen.keys() == {watch.name for watch in WATCHES}
    said = {
        watch.name: says(outcome.seen[watch.name], outcome.results)
        for watch, says in WATCHES.items()
    }
    return {name: sentence for name, sentence in said.items() if sentence}


@pytest.mark.stands_on("dtcourse/debugging/unasked/", "tests/debugging/test_unasked.py")
def test_nothing_is_said_of_what_is_right():
    assert sentences(HEALTHY, 3) == {}


SPEAKS = {
    "numbers": (NUMBERS, "On rank 0, div made the first", "program.py:8 (x = x / x.sum()"),
    "files": (FILES, "Ranks 0 and 1 all write last.pt", "program.py:5 (torch.save"),
}


@pytest.mark.parametrize("tool", SPEAKS)
def test_the_cause_is_named_and_its_line(tool):
    text, *words = SPEAKS[tool]
    said = sentences(text, 2)
    assert said.keys() == {tool}, said
    assert all(word in said[tool] for word in words), said


OWN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 3)).square().mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.stands_on(
    "dtcourse/debugging/__main__.py", "dtcourse/debugging/unasked/watch.py", share=(1, 4)
)
def test_a_script_of_the_readers_own_under_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(OWN)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [*torchrun, "dtcourse.debugging", "--record", "--watch", "records", "train.py"]
    run = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-m", *command], check=False, **run)
    assert done.returncode == 0, done.stderr
    read = [sys.executable, "-m", "dtcourse.debugging", "records"]
    said = subprocess.run(read, check=True, **run).stdout.splitlines()
    assert len(said) == 2 and said[0].startswith("Nothing is found")
    assert said[1].startswith("replicas: Before step 0 ranks 0 and 1 differ in weight")
