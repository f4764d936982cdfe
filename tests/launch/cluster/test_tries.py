"""What is shown of a job that was started again, and what is told of one that never starts: without a Slurm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dtcourse.launch import options
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import controller
from dtcourse.launch.cluster.job import Job


def followed(*logs):
    """A job on as many nodes as there are logs, two ranks each, whose log each gives its messages at one look."""
    job = object.__new__(Job)
    job.layout = options.Layout(2 * len(logs), len(logs), "cpu", 0, "gloo", 1)
    job.attempts, job.newest, job.shown = {}, 0, []
    job.on_line, job.on_message = lambda *line: job.shown.append(line), None
    new = [[lambda said=said: said for said in log] for log in logs]
    job.transport = SimpleNamespace(
        advance=lambda: None,
        logs=[SimpleNamespace(new=lambda one=one: one, sign=(0, 0)) for one in new],
    )
    job._begin_again()
    return job


def said(node, tries):
    """What the log of a node holds after so many tries: each rank prints its try."""
    return [
        message
        for attempt in range(tries)
        for message in (
            (words.HERE, {"attempt": attempt, "node": f"n{node}"}),
            *((words.LINE, (2 * node + rank, f"try {attempt}")) for rank in range(2)),
        )
    ]


@pytest.mark.parametrize("last_node_is_late", [False, True])
def test_of_a_job_that_was_started_again_the_last_try_is_shown(last_node_is_late):
    job = followed(said(0, 4), said(1, 3) if last_node_is_late else said(1, 4))
    assert job.read()
    of_node_1 = [] if last_node_is_late else [(2, "try 3"), (3, "try 3")]
    assert job.shown == [(0, "try 3"), (1, "try 3"), *of_node_1]
    assert job.lines[:2] == [["try 3"], ["try 3"]]
    assert job.names == ({0: "n0"} if last_node_is_late else {0: "n0", 1: "n1"})


def test_one_that_is_followed_while_it_is_started_again():
    job = followed(said(0, 1), said(1, 1))
    job.read()
    assert [line for _, line in job.shown] == ["try 0"] * 4
    for node, log in enumerate(job.transport.logs):
        log.new = lambda node=node: [lambda said=one: said for one in said(node, 2)[3:]]
    job.shown.clear()
    job.read()
    assert [line for _, line in job.shown] == ["try 1"] * 4
    assert job.lines == [["try 1"]] * 4


@pytest.mark.parametrize("reason", ["PartitionConfig", "PartitionNodeLimit"])
def test_too_many_nodes_are_told_as_that_whatever_slurm_calls_it(reason, monkeypatch):
    """Lowering `ranks_per_node`, as for nodes that are too small, would ask for still more nodes."""
    known = {"job": {"Partition": "lab"}, "partition": {"TotalNodes": "2", "MaxNodes": "UNLIMITED"}}
    monkeypatch.setattr(controller, "details", lambda kind, name: known[kind])
    told = controller.never_starts("9", 3, reason)
    assert "it asks for 3 nodes, and partition lab gives a job at most 2" in told
    assert "raise `ranks_per_node`" in told
    too_small = controller.never_starts("9", 2, reason)
    assert ("no node of its partition has so many CPUs" in too_small) == (
        reason == "PartitionConfig"
    )
