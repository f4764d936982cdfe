"""One log a rank, merged by clock: under launch and torchrun, and what is said of files that are spoiled."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import torch.distributed as dist

from dtcourse import events, launch
from dtcourse.debugging import logged_in, read_logs
from dtcourse.debugging.__main__ import main
from dtcourse.launch import rank_log


def step():
    log, rank = logging.getLogger("train"), dist.get_rank()
    for turn in range(3):  # one after the other
        if rank == turn:
            log.info("step of %d", turn)
            print("printed by", rank)
        dist.barrier()
    if rank == 1:
        warnings.warn("loss is not finite", stacklevel=1)
    dist.barrier()
    if rank == 2:
        log.error("the last word")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    launch(step, 3, env=logged_in(folder), on_failure="continue", timeout=100)
    return folder


def test_merged_in_the_order_in_which_it_happened(folder):
    logs = read_logs(folder)
    assert logs.notes == [], "killed, rank 2 has left what it had logged"
    steps = [(line.rank, line.message) for line in logs.lines if line.message.startswith("step")]
    assert steps == [(0, "step of 0"), (1, "step of 1"), (2, "step of 2")]
    assert [line.rank for line in logs.lines if line.level == "PRINT"] == [0, 1, 2]
    (left, *_) = [line for line in logs.lines if line.message == "the rank returned"]
    assert left.level == "INFO" and left.rank in (0, 1)
    (error,) = logs.of(level="error").lines
    assert (error.rank, error.message, error.logger) == (2, "the last word", "train")
    assert error.place.startswith("test_logs.py:")


def test_of_some_ranks_and_levels_from_a_command_line(folder, capsys):
    main(["logs", str(folder), "--ranks", "1", "--level", "warning"])
    (said, *_) = capsys.readouterr().out.splitlines()
    assert said.startswith("+0.000 s  rank 1  WARNING  ") and "loss is not finite" in said
    with pytest.raises(SystemExit):
        main(["logs", str(folder), "--level", "loud"])
    assert "level is one of NOTSET, DEBUG, INFO, PRINT" in capsys.readouterr().err


def test_spoiled_files(folder, tmp_path):
    for file in folder.glob("*.jsonl"):
        (tmp_path / file.name).write_text(file.read_text())
    one = tmp_path / "rank-0.log.jsonl"
    one.write_text(one.read_text()[:-9])
    (tmp_path / "rank-1.log.jsonl").write_text("{}")
    header, *lines = (tmp_path / "rank-2.log.jsonl").read_text().splitlines()
    elsewhere = json.dumps(json.loads(header) | {"boot": "another", "host": "other"})
    (tmp_path / "rank-2.log.jsonl").write_text("\n".join([elsewhere, *lines]))
    cut, unreadable, missing, machines = read_logs(tmp_path).notes
    assert cut.startswith("the log of rank 0 is cut off after ")
    assert unreadable.startswith("rank-1.log.jsonl cannot be read (KeyError")
    assert missing == "rank 1 of 3 left no log"
    assert machines.startswith("of 2 machines, each by its own clock")
    with pytest.raises(ValueError, match="no rank has left a log in"):
        read_logs(tmp_path / "empty")


SCRIPT = """
import logging
def step():
    logging.getLogger("train").warning("here")
"""


@pytest.mark.stands_on("dtcourse/launch/", "dtcourse/debugging/")
def test_under_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "dtcourse.launch", "train.py:step"]
    env = {**os.environ, **logged_in(tmp_path / "logs")}
    subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, check=True, timeout=300)
    here = [line.rank for line in read_logs(tmp_path / "logs").lines if line.message == "here"]
    assert sorted(here) == [0, 1]


def test_where_events_are_recorded_each_line_is_one_with_its_bytes_and_its_thread(tmp_path):
    path = tmp_path / "rank-3.log.jsonl"
    log = rank_log._RankFile(path, 3, "INFO")
    header = path.stat().st_size
    log.write("INFO", "train", "", "nobody records")
    before = path.stat().st_size
    events.start_recording(3)
    log.write("INFO", "train", "", "x" * 1000)
    aside = threading.Thread(
        target=log.write, args=("INFO", "train", "", "beside it"), name="logger"
    )
    aside.start()
    aside.join()
    found = events.stop_recording()
    log._file.close()
    assert header < before
    assert [(e.kind, e.rank, e.lane) for e in found] == [("log", 3, "main"), ("log", 3, "logger")]
    assert sum(e.bytes for e in found) == path.stat().st_size - before > 1000
