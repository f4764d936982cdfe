"""All ranks write one checkpoint: it is complete or not there, and a damaged one is named and passed over."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import checkpoint, launch
from dtcourse.checkpoint import files
from dtcourse.fault_tolerance import Checkpoints, NotComplete, NotSaved, folders, mark
from dtcourse.launch import RankFailure
from dtcourse.sharding import fully_shard
from tests import optional_programs
from tests.rotation import ROOT


def sharded(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def take_step(model, optimizer):
    model(torch.ones(2, 3).double()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def values(model):
    return [p.to_local().clone() for p in model.parameters()]


def writer(model, optimizer):
    return lambda folder, group: checkpoint.save(folder / "model", model, optimizer)


class Killer:
    """On one rank: dies before an operation, which is given by its number or by its kind and the file's name."""

    def __init__(self, rank, at):
        self.at, self.done = at if dist.get_rank() == rank else None, 0

    def __call__(self, operation):
        if self.at in (self.done, (operation.kind, operation.path.name)):
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1


def save_two(root, rank, at):
    """Saves after steps 1 and 2; in the second save a rank dies. How many operations this rank did in it."""
    done = []
    model, optimizer = sharded(0)
    checkpoints = Checkpoints(root, keep=1)
    take_step(model, optimizer)
    checkpoints.save(1, writer(model, optimizer), {"values": values(model)[0].tolist()})
    take_step(model, optimizer)
    with files.watched(done.append), files.watched(Killer(rank, at)):
        checkpoints.save(2, writer(model, optimizer), {"values": values(model)[0].tolist()})
    return len(done)


def load_newest(root):
    model, optimizer = sharded(1)
    found = Checkpoints(root).latest()
    checkpoint.load(found.folder / "model", model, optimizer)
    if dist.get_rank() == 0:
        assert found.about["values"] == values(model)[0].tolist()
    return found.step


@pytest.mark.parametrize(
    ("rank", "at", "steps"),
    [
        (1, ("create", "__1_0.distcp"), [1]),
        (0, ("rename", ".writing-step-00000002"), [1]),
        (0, ("rename", "step-00000001"), [1, 2]),
        (0, ("remove folder", ".removing-step-00000001"), [2]),
    ],
    ids=["writing its shard", "before the new name", "after it", "removing an old one"],
)
def test_a_rank_is_killed_in_a_sharded_save_and_the_newest_complete_one_loads(
    rank, at, steps, tmp_path
):
    with pytest.raises(RankFailure, match="SIGKILL"):
        launch(save_two, 2, tmp_path, rank, at)
    assert folders.steps(tmp_path) == steps
    assert launch(load_newest, 2, tmp_path)[0] == steps[-1]


@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/checkpoint/")
@pytest.mark.parametrize("rank", [0, 1])
def test_it_is_killed_at_each_operation_of_each_rank(rank, tmp_path):
    number = launch(save_two, 2, tmp_path / "undisturbed", 0, None)[rank]
    assert folders.steps(tmp_path / "undisturbed") == [2]
    for at in range(
        number - 2
    ):  # the ranks make one folder together: either of them has two operations less
        root = tmp_path / f"{at}"
        with pytest.raises(RankFailure, match="SIGKILL"):
            launch(save_two, 2, root, rank, at)
        assert folders.steps(root) in ([1], [1, 2], [2])
        for step in folders.steps(root):
            assert folders.checked(root / folders.name_of(step)).step == step


# --- damaged, without a mark, in the way ----------------------------------------------------------------------------


def damage(root, how):
    """Saves 1 and 2, and something happens to 2; what latest() says, and what at(2) says."""
    model, optimizer = sharded(0)
    checkpoints = Checkpoints(root)
    for step in (1, 2):
        checkpoints.save(step, writer(model, optimizer), {"values": values(model)[0].tolist()})
    if dist.get_rank() == 0:
        how(root / folders.name_of(2))
    dist.barrier()
    with pytest.raises(NotComplete) as refused:
        checkpoints.at(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = checkpoints.latest()
    checkpoints.save(2, writer(model, optimizer))  # the run gets there again
    return str(refused.value), [str(w.message) for w in said], found.step


def flip_a_bit(folder):
    path = folder / "model/__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut_off(folder):
    path = folder / "model/.metadata"
    path.write_bytes(path.read_bytes()[:-1])


def lose(folder):
    (folder / "model/__0_0.distcp").unlink()


def without_mark(folder):
    """As dtcourse.checkpoint.save writes it."""
    for path in (folder / "model").iterdir():
        path.rename(folder / path.name)
    (folder / mark.NAME).unlink()


def damage_the_mark(folder):
    path = folder / mark.NAME
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'"step": 9'))


def of_another_version(folder):
    old = mark.read(folder)
    (folder / mark.NAME).unlink()
    before, mark.FORMAT = mark.FORMAT, 7
    mark.write(folder, old)
    mark.FORMAT = before


def damages(root):
    return {how.__name__: damage(root / how.__name__, how) for how in HOW}


HOW = {
    flip_a_bit: r"model/__1_0.distcp in .*step-00000002 is damaged: its checksum is [0-9a-f]{8}, and was [0-9a-f]{8}",
    cut_off: r"model/.metadata in .* is damaged: it has (\d+) bytes, and \d+ were written",
    lose: r"model/__0_0.distcp is missing in .*step-00000002",
    without_mark: r"a checkpoint without complete.json, .* nothing says that it is complete. If you know",
    damage_the_mark: r"complete.json is damaged: it ends with 'crc32 \d+\\n', and its first line has the checksum \d+",
    of_another_version: r"has format 7, and this version of dtcourse reads format 1: resume with",
}


def test_a_damaged_one_is_named_and_the_one_before_is_taken(tmp_path):
    for rank, said in enumerate(launch(damages, 2, tmp_path)):
        for how, sentence in HOW.items():
            refused, warned, step = said[how.__name__]
            assert step == 1
            assert re.search(sentence, refused), refused
            assert [
                refused
                + ". The checkpoint before it is taken; this one is now damaged-1-step-00000002"
            ][rank:] == warned
    assert sorted(os.listdir(tmp_path / "lose"))[0] == "damaged-1-step-00000002"


def into_what_exists(root):
    model, optimizer = sharded(0)
    checkpoints = Checkpoints(root)
    checkpoints.save(1, writer(model, optimizer))
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    dist.barrier()
    with pytest.raises(
        ValueError, match="step-00000001 exists, and nothing is written into a folder"
    ):
        checkpoints.save(1, writer(model, optimizer))
    return before == {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_nothing_is_written_into_a_folder_that_exists(tmp_path):
    assert launch(into_what_exists, 2, tmp_path)[1]


# --- a disk that fills up -------------------------------------------------------------------------------------------


def full_disk(root, rank):
    """A rank may write files of 500 bytes at most, as if the disk were full then: EFBIG in the place of ENOSPC."""
    model, optimizer = sharded(0)
    checkpoints = Checkpoints(root)
    checkpoints.save(1, writer(model, optimizer))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    with pytest.raises(NotSaved) as failed:
        checkpoints.save(2, writer(model, optimizer))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = os.listdir(root)
    found = checkpoints.latest()
    checkpoints.save(2, writer(model, optimizer))  # somebody has made room
    return str(failed.value), left, found.step, checkpoints.latest().step


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_costs_the_new_checkpoint_alone_and_all_ranks_say_so(rank, tmp_path):
    for sentence, left, found, after in launch(full_disk, 2, tmp_path, rank):
        assert "the checkpoint after step 2 could not be written" in sentence
        assert "nothing of it is left there; the newest one is after step 1" in sentence
        assert f"on rank {rank}: [Errno 27] File too large" in sentence
        assert (left, found, after) == (["step-00000001"], 1, 2)


def small_disk(root):
    """Something else fills the disk before the second save, and is gone before the third."""
    model, optimizer = sharded(0)
    checkpoints = Checkpoints(root)
    checkpoints.save(1, writer(model, optimizer))
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    dist.barrier()
    if dist.get_rank() == 0:
        with suppress(OSError), (root / "else").open("wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass
    dist.barrier()
    with pytest.raises(NotSaved) as failed:
        checkpoints.save(2, writer(model, optimizer))
    left, found = sorted(os.listdir(root)), checkpoints.latest()
    same = all(path.read_bytes() == data for path, data in before.items())
    dist.barrier()
    if dist.get_rank() == 0:
        (root / "else").unlink()
    dist.barrier()
    checkpoints.save(2, writer(model, optimizer))
    return str(failed.value), left, found.step, same, checkpoints.latest().step


@pytest.mark.needs("users")
def test_a_small_disk_that_fills_up_costs_the_new_checkpoint_alone(tmp_path):
    """The real thing: a file system of half a megabyte in memory."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip(optional_programs.NEEDS["users"].reason)
    try:
        for sentence, left, found, same, after in launch(small_disk, 2, tmp_path):
            assert "the checkpoint after step 2 could not be written" in sentence
            assert "No space left on device" in sentence
            assert (left, found, same, after) == (["else", "step-00000001"], 1, True, 2)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_keep_is_a_number():
    with pytest.raises(ValueError, match="keep is how many checkpoints stay, 1 or more; got 0"):
        Checkpoints("nowhere", keep=0)


def test_only_the_door_writes():
    """In checkpoint/ and fault_tolerance/, but for heartbeats and what PyTorch does with the door's file system."""
    words = (
        "write_text(",
        "write_bytes(",
        ".mkdir(",
        ".rename(",
        ".replace(",
        ".unlink(",
        "fsync(",
        "rmtree(",
        "torch.save(",
    )
    for folder in ("checkpoint", "fault_tolerance"):
        for path in (Path(ROOT) / "dtcourse" / folder).rglob("*.py"):
            if path.name not in ("files.py", "power_cuts.py") and path.parent.name != "watching":
                for line in path.read_text().splitlines():
                    through_it = re.sub(r"files\.\w+\(|torch\.save\(.*, stream\)", "", line)
                    assert not any(word in through_it for word in words), (path, line)
