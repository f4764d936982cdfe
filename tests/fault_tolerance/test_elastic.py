"""Workers die, join and leave, and training goes on: the same bits with virtual ranks, 1e-10 with DDP."""

from __future__ import annotations

import queue
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.fault_tolerance import Checkpoints, TrainingState
from dtcourse.fault_tolerance.elastic import ElasticJob
from dtcourse.fault_tolerance.elastic.groups import NotFormed
from dtcourse.fault_tolerance.holdings import StateLost
from dtcourse.fault_tolerance.replicated import Replicated
from dtcourse.launch import RankFailure
from dtcourse.verify import compare
from tests.fault_tolerance.elastic_parts import Sharded
from tests.fault_tolerance.elastic_training import (
    DIES,
    JOINS,
    LAST,
    LEAVES,
    dies,
    train,
    undisturbed,
)


def test_workers_die_join_and_leave_and_nothing_of_the_training_changes(tmp_path):
    told = queue.Queue()
    with ElasticJob(train, 4, tmp_path, on_message=lambda *said: told.put(said[1])) as job:
        assert told.get(timeout=100) == JOINS
        new = job.add()
        while new not in job.waiting():
            time.sleep(0.01)
        (tmp_path / str(JOINS)).touch()
        while told.get(timeout=100) != LEAVES:
            pass
        job.ask_to_leave(0)
        (tmp_path / str(LEAVES)).touch()
        outcomes = job.result(timeout=100)
    assert [(g.members, g.step) for g in job.generations] == [
        ((0, 1, 2, 3), 0), ((0, 1, 2), 0), ((0, 2), DIES - 1), ((0, 2, new), JOINS), ((2, new), LEAVES),
    ]  # fmt: skip
    for worker in (1, 3):
        assert "killed by SIGKILL" in str(outcomes[worker])
    assert outcomes[0][:2] == (True, LEAVES)
    bits, ddp, log = launch(undisturbed, 1)[0]
    for worker in (2, new):
        left, step, (bits_here, ddp_here, log_here) = outcomes[worker]
        assert (left, step) == (False, LAST)
        assert bits_here == bits, "on 3, 2, 3 and 2 ranks as on one"
        compare(ddp_here, ddp, 1e-10, "value")
        assert [read for _, read in log_here] == [read for _, read in log], "the same samples"
        losses = [loss for loss, _ in log_here]
        assert losses == pytest.approx([loss for loss, _ in log], rel=1e-10)


def forms_a_group(elastic):
    """Worker 1 dies where the others form a group with it, and wait in the store for its address."""

    def build():
        if elastic.worker == 1:
            dies()
        dist.new_group([0, 1])
        return Counter()

    elastic.run(build, lambda run, number: None, last=1)
    return elastic.members


def test_who_forms_a_group_with_one_that_has_died_is_woken():
    """gloo would wait for 30 minutes: there is no connection yet that could break."""
    with ElasticJob(forms_a_group, 2, least=2, replacements=1) as job:
        outcomes = job.result(timeout=100)
    assert [g.members for g in job.generations] == [(0, 1), (0, 2)]
    assert outcomes[0] == outcomes[2] == (0, 2)


def goes_while_others_form(elastic):
    """Worker 2 loses a connection and lives, while the others form a group with it."""

    def build():
        if elastic.worker == 2 and elastic.generation == 0:
            raise NotFormed("a connection was lost")
        dist.new_group([0, 1, 2])
        return Counter()

    elastic.run(build, lambda run, number: None, last=1)
    return elastic.members


def test_who_forms_a_group_with_one_that_has_left_is_woken():
    with ElasticJob(goes_while_others_form, 3, least=3) as job:
        outcomes = job.result(timeout=100)
    assert [g.members for g in job.generations] == [(0, 1, 2), (0, 1, 2)]
    assert set(outcomes.values()) == {(0, 1, 2)}


class Counter:
    """A run that counts its steps."""

    def __init__(self):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.replica = Replicated(self.model, optimizer)
        self.state_dict, self.load_state_dict = (
            self.replica.state_dict,
            self.replica.load_state_dict,
        )
        self.saved = TrainingState.of(self.model, optimizer)


def alone(elastic, folder, fails):
    """The only worker fails in step 3 of its first life: the state in memory is gone with it."""
    checkpoints = []

    def load(run):
        checkpoints.append(Checkpoints(folder))
        found = checkpoints[0].latest()
        return run.saved.load(found) if found else 0

    def step(run, number):
        if number == 3 and elastic.worker == 0:
            fails()
        run.model.weight.data += 1
        if checkpoints:
            checkpoints[0].save(number, run.saved.snapshot(), run.saved.about())

    run = elastic.run(Counter, step, last=4, load=load if folder else None)
    return run.model.weight.item()


def test_where_the_last_one_with_the_state_dies_the_file_is_taken_and_without_one_it_is_said(
    tmp_path,
):
    with ElasticJob(alone, 1, tmp_path, dies, replacements=1) as job:
        outcomes = job.result()
    assert outcomes[1] == 4.0, "two steps from the file, two of its own"
    assert "SIGKILL" in str(outcomes[0])
    said = "all workers that had the state are gone: worker 0 was killed by SIGKILL"
    with (
        ElasticJob(alone, 1, None, dies, replacements=5) as job,
        pytest.raises(RankFailure, match=said) as caught,
    ):
        job.result()
    assert isinstance(caught.value.__cause__, StateLost)
    assert sorted(job.outcomes) == [0, 1], "a third would find no state either"


def mistaken():
    raise RuntimeError("shapes do not fit")


def test_a_mistake_of_the_program_is_no_lost_rank():
    with (
        ElasticJob(alone, 1, None, mistaken) as job,
        pytest.raises(RankFailure, match="raised RuntimeError: shapes do not fit"),
    ):
        job.result()
    with pytest.raises(ValueError, match="the job is over"):
        job.add()


def test_what_cannot_be():
    for words, wrong in {
        r"size is a number of workers, 1 or more; got 0": {"size": 0},
        r"most=1 workers are fewer than least=2": {"size": 2, "least": 2, "most": 1},
        r"1 workers are started and least=2 are needed": {"size": 1, "least": 2},
    }.items():
        with pytest.raises(ValueError, match=words):
            ElasticJob(alone, wrong.pop("size"), **wrong)


def in_parts(elastic, folder):
    """Fully sharded. Rank 1's worker dies in step 3; in step 6 both rank 0's and rank 1's, which kept its copy."""
    saved = []

    def build():
        run = Sharded("fully_shard", seed=0 if elastic.generation == 0 else 50 + elastic.worker)
        saved[:] = [Checkpoints(folder / "checkpoints")]
        return run

    def step(run, number):
        rank = elastic.members.index(elastic.worker)
        if (elastic.generation, number, rank) == (0, 3, 1):
            dies()
        if (elastic.generation, number) == (1, 6) and rank < 2:
            (folder / f"ready-{rank}").touch()
            while not (folder / f"ready-{1 - rank}").exists():
                time.sleep(0.01)
            dies()
        run.step()
        if number == 4:
            saved[0].save(number, run.saved.snapshot(), run.saved.about())

    def load(run):
        found = saved[0].latest()
        return run.saved.load(found) if found else 0

    run = elastic.run(build, step, 7, load=load, in_parts=True)
    return run.bits()


def whole(seed):
    run = Sharded("fully_shard", seed=seed)
    for _ in range(7):
        run.step()
    return run.bits()


@pytest.mark.stands_on("dtcourse/fault_tolerance/")
def test_a_new_worker_takes_a_lost_one_s_place_and_gets_its_shard_from_the_neighbour(tmp_path):
    with ElasticJob(in_parts, 3, tmp_path, least=3, most=3, replacements=3) as job:
        outcomes = job.result(timeout=110)
    assert [g.members for g in job.generations] == [(0, 1, 2), (0, 3, 2), (4, 5, 2)]
    for worker, expected in zip((4, 5, 2), launch(whole, 3, 0), strict=True):
        assert all(map(torch.equal, outcomes[worker], expected)), worker
