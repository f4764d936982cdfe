"""diagnose_hang on planted hangs: it names the rank, the operation and the line, and says nothing of healthy runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.debugging import diagnose_hang, read_records, recorded_in
from dtcourse.launch import RankTimeout
from tests.debugging import cases, hanging

PATIENCE = hanging.WAITED / 2

# By case: kind, ranks, operation, a part of the line, and words that the sentence must have.
EXPECTED = {
    "other_order": ("order", [2], "reduce", "dist.reduce(y, 0", "ranks 0 and 1 called all_reduce"),
    "other_shape": ("shape", [2], "all_reduce", "all_reduce(x", "(6291456,)"),
    "other_dtype": ("dtype", [2], "all_reduce", "all_reduce(x", "float64"),
    "other_root": ("argument", [1], "broadcast", "dist.broadcast", "root 1"),
    "leaves_early": ("left", [2], "all_reduce", "all_reduce", "left (returned)"),
    "leaves_one_out": ("left", [2], "all_reduce", "all_reduce", "from call 3 of"),
    "is_elsewhere": ("elsewhere", [2], "barrier", "_over.wait", "was in no call"),
    "wrong_group": ("group", [2], "all_reduce", "group=pair", "of ranks 0, 2"),
    "all_send_first": ("sends", [0, 1, 2], "send", "dist.send(x", "each sends first"),
    "all_receive_first": ("receives", [0, 1, 2], "recv", "dist.recv(y", "each receives first"),
    "other_tag": ("tag", [0, 1], "recv", "tag=6", "tag 5"),
    "nobody_sends": ("elsewhere", [2], "recv", "_over.wait", "has not come to recv from rank 2"),
    "another_receives_meanwhile": (
        "elsewhere",
        [2],
        "barrier",
        "_over.wait",
        "where rank 0 waits at",
    ),
    "ddp_with_a_skipped_backward": ("left", [2], "all_reduce", "Linear", "loss.backward()"),
    "asynchronous": ("left", [2], "all_reduce", "work = ", "call 2 of"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """All hangs, in one launch."""
    folder = tmp_path_factory.mktemp("hangs")
    launch(hanging.run_all, 3, cases.CASES, folder, {"trains": cases.trains}, timeout=240)
    return folder


@pytest.mark.parametrize("case", cases.CASES)
def test_a_hang_is_explained(recorded, case):
    kind, ranks, operation, line, words = EXPECTED[case]
    found = diagnose_hang(recorded / case, PATIENCE)
    assert (found.kind, found.ranks, found.operation) == (kind, ranks, operation), str(found)
    assert line in found.line, found.line
    assert words in found.sentence, found.sentence
    assert found.notes == []
    assert found.sentence.count(". ") == 0, "one sentence"


def test_of_a_healthy_run_nothing_is_said(recorded):
    found = diagnose_hang(recorded / "trains", 0.0)
    assert not found and found.sentence == "" and found.notes == []
    calls = read_records(recorded / "trains").of[0].calls
    assert {call.state for call in calls} == {"finished"}
    posted_by_cpp = [c for c in calls if c.lines and "backward()" in c.lines[0][3]]
    assert [c.operation for c in posted_by_cpp].count("all_reduce") == 3, "DDP's own, from C++"


def test_our_backends_are_recorded_as_well(tmp_path):
    some = {name: cases.CASES[name] for name in ("is_elsewhere", "leaves_early")}
    launch(
        hanging.run_all, 3, some, tmp_path, {"trains": cases.trains}, backend="ring", timeout=120
    )
    for name in some:
        kind, ranks, operation, line, _ = EXPECTED[name]
        found = diagnose_hang(tmp_path / name, PATIENCE)
        assert (found.kind, found.ranks, found.operation) == (kind, ranks, operation), str(found)
        assert line in found.line
    assert not diagnose_hang(tmp_path / "trains", 0.0)


def waits_twice():
    x, rank = torch.ones(2), dist.get_rank()
    dist.barrier()
    work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
    work.wait()
    if rank == 0:
        work.wait()


def test_a_handle_that_is_waited_for_twice_under_launch(tmp_path):
    """Written at launch's time limit; the rank that had returned has written its own."""
    with pytest.raises(RankTimeout):
        launch(waits_twice, 2, timeout=6, env=recorded_in(tmp_path))
    found = diagnose_hang(tmp_path, 0.5)
    assert (found.kind, found.ranks, found.operation) == ("twice", [0], "isend"), str(found)
    assert "work.wait()" in found.line and "second wait()" in found.sentence


SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
if dist.get_rank() == 1:
    time.sleep(600)  # does something else
dist.all_reduce(x)
"""


def test_a_script_under_torchrun_that_knows_nothing_of_it(tmp_path):
    """The rank that waits asks the other one, which is in no call, by way of the folder."""
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "records"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [
        "-m",
        "dtcourse.debugging",
        "--record",
        "--hang-after",
        "1",
        str(folder),
        "train.py",
    ]
    program = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        hanging.wait_until(lambda: len(list(folder.glob("rank-*.jsonl"))) == 2)
    finally:
        program.terminate()
        program.wait(60)
    read = [sys.executable, "-m", "dtcourse.debugging", "--patience", "0.5", str(folder)]
    said = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert "Rank 1 was in no call, at train.py:7 (time.sleep(600)  # does something else)" in said
    assert "where rank 0 waits at train.py:8" in said


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(recorded, tmp_path):
    """A copy of the records of `other_order`, to be spoiled."""
    for file in (recorded / "other_order").glob("rank-*.jsonl"):
        (tmp_path / file.name).write_text(file.read_text())
    return tmp_path


def test_a_record_that_was_cut_off_says_what_it_still_has(damaged):
    file = damaged / "rank-1.jsonl"
    header = json.loads(file.read_text().splitlines()[0])
    file.write_text(file.read_text()[:-40])
    found = diagnose_hang(damaged, PATIENCE)
    assert (
        "rank 1 is cut off" in found.notes[0] and f"of {header['entries']} calls" in found.notes[0]
    )
    assert found.kind == "order" and 2 in found.ranks, str(found)
    file.write_text(file.read_text()[:40])
    found = diagnose_hang(damaged, PATIENCE)
    assert "rank-1.jsonl cannot be read" in found.notes[0]
    assert "rank 1 of 3 has no record" in found.notes[1]
    assert found.kind == "order" and 2 in found.ranks, str(found)


SPOILED = {
    "its rank is '1'": {"rank": "1"},
    "its groups is None": {"groups": None},
    "its written is 'x'": {"written": "x"},
    "it says that it is of rank 0": {"rank": 0},
    "KeyError: 'messages'": {"messages": ...},
}


@pytest.mark.parametrize("said", SPOILED)
def test_a_record_that_is_spoiled_is_named_and_the_others_say_what_they_can(damaged, said):
    file = damaged / "rank-1.jsonl"
    first, *calls = file.read_text().splitlines()
    header = {k: v for k, v in (json.loads(first) | SPOILED[said]).items() if v is not ...}
    file.write_text("\n".join([json.dumps(header), *calls]))
    found = diagnose_hang(damaged, PATIENCE)
    assert found.kind == "order" and 2 in found.ranks, str(found)
    assert found.notes[0].startswith("rank-1.jsonl cannot be read (") and said in found.notes[0]
    assert found.notes[1] == "rank 1 of 3 has no record of this run"


def test_a_call_that_is_spoiled_and_a_first_line_that_is_none(damaged):
    file = damaged / "rank-1.jsonl"
    header, call, *calls = file.read_text().splitlines()
    spoiled = json.dumps(json.loads(call) | {"sizes": None})
    file.write_text("\n".join([header, spoiled, *calls]))
    assert "rank 1 is cut off: the newest 0 of " in diagnose_hang(damaged, PATIENCE).notes[0]
    for first in ("[]", "null", ""):
        file.write_text(first)
        assert "its first line is no record's" in diagnose_hang(damaged, PATIENCE).notes[0]
    (damaged / "rank-0.jsonl").unlink()
    assert diagnose_hang(damaged, PATIENCE).notes[1] == "ranks 0, 1 of 3 have no record of this run"


def test_logs_in_the_same_folder_are_no_records(damaged):
    (damaged / "rank-1.log.jsonl").write_text("{}\n")
    assert diagnose_hang(damaged, PATIENCE).notes == []


def test_a_record_of_another_run_is_left_out(damaged, recorded):
    other = (recorded / "trains" / "rank-2.jsonl").read_text().splitlines()
    header = json.loads(other[0]) | {"run": "another"}
    (damaged / "rank-2.jsonl").write_text("\n".join([json.dumps(header), *other[1:]]))
    found = diagnose_hang(damaged, PATIENCE)
    assert found.notes[0] == "the record of rank 2 is of another run, and left out"
    assert found.kind == "no record" and found.ranks == [2]
    assert "left no record" in found.sentence and "ranks 0 and 1 wait" in found.sentence


def test_no_record_at_all(tmp_path):
    with pytest.raises(ValueError, match="no rank has left a record"):
        diagnose_hang(tmp_path)
