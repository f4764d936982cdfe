"""The queue of arrivals is a parameter server: its order, what it computes, its seconds; and the study goes on."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from dtcourse import emulation, launch
from dtcourse.asynchronous import (
    Asynchronous,
    BackupWorkers,
    BoundedStaleness,
    ParameterServer,
    Synchronous,
    Worker,
    inverse_staleness,
)
from dtcourse.course.replicas import Digits
from dtcourse.emulation import EmulatedNetwork
from dtcourse.models import MLP
from tests.turns import takes_turns

STEPS, LR = 5, 0.3
SAMPLES, BATCH, SIZES = 40, 3, (64, 6, 6, 10)
COMPUTE = (1.0, 1.3, 3.7)  # seconds of each worker's gradient: no two ever arrive at once


@pytest.fixture(scope="module")
def script(study):
    return study("less_waiting")


def trained(rule, turns):
    """Real ranks; a worker pushes when all before it in `turns` have been answered: a token goes from one to the next.

    What the server did, and its parameters.
    """
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    model = MLP(SIZES, seed=0).double()
    tokens = dist.new_group(list(range(1, workers + 1)))
    if rank == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        report = ParameterServer(model, optimizer, rule).serve()
        served = [(s.what, s.workers, s.staleness) for s in report.served]
        return served, parameters_to_vector(model.parameters()).detach()
    digits = Digits.drawn(SAMPLES, 0, torch.float64)
    own = digits.pools(1, by_class=False).expand(workers, -1)
    batches = digits.batches(own, BATCH, 1)
    with Worker(model) as worker:
        token = torch.zeros(1)
        for place, turn in enumerate(turns):
            if turn != rank:
                continue
            chosen = next(batches)[rank - 1]
            model.zero_grad()
            F.cross_entropy(model(digits.x[chosen]), digits.y[chosen]).backward()
            if place and turns[place - 1] != rank:
                dist.recv(token, turns[place - 1], group=tokens)
            worker.push()
            worker.pull()
            if place + 1 < len(turns) and turns[place + 1] != rank:
                dist.send(token, turns[place + 1], group=tokens)
    return None


@pytest.mark.parametrize(
    "make",
    [Asynchronous, lambda: Asynchronous(inverse_staleness), lambda: BoundedStaleness(9)],
    ids=["constant", "by staleness", "bounded"],
)
def test_the_queue_is_a_server_whose_workers_come_in_this_order(script, make):
    """Workers take 1, 1.3 and 3.7 seconds: who comes when is known, and real workers are made to come like that."""
    settings = script.Settings(batch=BATCH, samples=SAMPLES, width=SIZES[1])
    rate = LR * script.WORKERS / 3
    method = script.Method("this", make, workers=3)
    queue = script.Training(
        method, settings, 0, lambda w, _: COMPUTE[w - 1], (rate / 3, rate), torch.float64
    )
    turns = [arrival.worker for arrival in islice(queue.arrivals(), 12)]
    assert turns == [1, 2, 1, 2, 1, 3, 2, 1, 1, 2, 1, 2]
    served, parameters = launch(trained, 4, make(), turns, timeout=None)[0]
    applied = [(workers, staleness) for what, workers, staleness in served if what == "apply"]
    assert [workers for workers, _ in applied] == [(w,) for w in turns]
    assert [s for _, (s,) in applied] == queue.staleness
    assert torch.allclose(queue.X[1], parameters, rtol=1e-12, atol=1e-14)


def test_all_equal_rules_without_staleness_are_one_process(script):
    """Synchronous, no backup, nobody ahead: the mean of everyone's gradients in each step, written out here."""
    settings = script.Settings(batch=BATCH, samples=SAMPLES, width=SIZES[1])
    digits, model = Digits.drawn(SAMPLES, 0, torch.float64), MLP(SIZES, seed=0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    own = digits.pools(1, by_class=False).expand(8, -1)
    for chosen in islice(digits.batches(own, BATCH, 1), STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(digits.x[chosen.flatten()]), digits.y[chosen.flatten()]).backward()
        optimizer.step()
    expected = parameters_to_vector(model.parameters()).detach()
    for make in (Synchronous, lambda: BackupWorkers(0), lambda: BoundedStaleness(0)):
        method = script.Method("this", make)
        queue = script.Training(
            method, settings, 0, script.paced("equal", 8, 0), (0.3,), torch.float64
        )
        for _ in islice(queue.arrivals(), 8 * STEPS):
            pass
        assert torch.allclose(queue.X[0], expected, rtol=1e-11, atol=1e-13)


def test_unequal_workers_take_from_once_to_eight_times_as_long(script):
    equal, unequal = (script.paced(pace, 8, 0) for pace in ("equal", "unequal"))
    factors = [unequal(worker, 3) / equal(worker, 3) for worker in range(1, 9)]
    assert factors == pytest.approx([8 ** (i / 7) for i in range(8)])


def test_backups_are_dropped(script):
    queue = script.SimulatedServer(BackupWorkers(1), 3, lambda w, _: COMPUTE[w - 1])
    times = [arrival.time for arrival in islice(queue.arrivals(), 6)]
    # 1 and 2 make updates at 1.3, 2.6 and 3.9; 3 comes at 3.7 with a gradient of version 0
    assert times == pytest.approx([1.0, 1.3, 2.3, 2.6, 3.6, 3.7])
    assert queue.version == 2 and queue.num_dropped == 1 and set(queue.staleness) == {0}


def seconds(compute):
    """Emulated seconds until a worker has its last parameters."""
    model = torch.nn.Linear(999, 1, bias=False).double()
    if dist.get_rank() == 0:
        ParameterServer(model, torch.optim.SGD(model.parameters(), lr=0.1), Synchronous()).serve()
        return None
    with Worker(model) as worker:
        began = emulation.now()
        for _ in range(STEPS):
            emulation.sleep(compute[dist.get_rank() - 1])
            worker.push()
            worker.pull()
        return emulation.now() - began


def test_seconds_are_those_of_the_virtual_clock(script):
    network, nbytes = EmulatedNetwork(latency=1e-2, bandwidth=40_000), 8 * 999
    run = launch(seconds, 4, COMPUTE, network=network, clock="virtual", timeout=None)
    queue = script.SimulatedServer(Synchronous(), 3, lambda w, _: COMPUTE[w - 1], network, nbytes)
    for _ in islice(queue.arrivals(), 3 * STEPS):
        pass
    # The queue is at the last gradient; after it three answers leave the server's port, one after the other.
    answers = [queue.now + (i + 1) * nbytes / 40_000 + 1e-2 for i in range(3)]
    assert sorted(run[w] for w in (1, 2, 3)) == pytest.approx(answers, rel=1e-6)


# --- the study ---------------------------------------------------------------------------------------------------

KEPT = ["synchronous", "backup workers, 1", "asynchronous", "asynchronous, 2 workers"]


@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    path = tmp_path / "results.json"
    settings = script.Settings(
        batch=2, gradients=64, every=32, tuning=1, samples=40, width=8, timed=4
    )
    assert not script.study(path, settings, seeds=1, budget=0.0, names=KEPT)
    assert script.study(path, settings, seeds=1, names=KEPT)
    first = json.loads(path.read_text())
    for pace in script.PACES:
        for name in KEPT if pace == "equal" else KEPT[:3]:
            run = first["runs"][script.key("gradients", pace, name, 0)]
            best = first["runs"][script.key("tuned", pace, name)]["best"]
            assert set(run["losses"]) == {str(best), str(script.COMMON)}
            assert all(len(losses) == 3 for losses in run["losses"].values())
            assert len(run["times"]) == len(run["updates"]) == 3
            assert run["updates"][-1] == {"asynchronous": 64, "synchronous": 8}.get(
                name, run["updates"][-1]
            )
            # The last gradients of a step may not have been applied yet.
            assert 64 - 8 < sum(run["staleness"].values()) + run["dropped"] <= 64
    slow = [first["runs"][script.key("seconds", "ResNet-50", 100, pace)]["step"] for pace in script.PACES]  # fmt: skip
    assert slow[1]["synchronous"] > slow[0]["synchronous"]
    assert script.study(path, settings, seeds=2, names=KEPT)
    grown = json.loads(path.read_text())
    assert first["runs"].items() <= grown["runs"].items(), "nothing is measured twice"
    assert len(list(script.summary(grown))) == 3 * len(KEPT) - 2


def test_staleness_is_that_of_the_number_of_workers(script):
    """n equal workers, one after the other: each has n - 1 updates between its pull and its push."""
    for n in (1, 2, 5):
        queue = script.SimulatedServer(Asynchronous(), n, lambda w, _: 1.0)
        for _ in islice(queue.arrivals(), 20 * n):
            pass
        assert set(queue.staleness[n:]) == {n - 1}


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    settings = script.Settings(**results["settings"])
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]
    assert results["seeds"] >= 8 and list(results["methods"]) == list(script.METHODS)
    names = [
        name
        for name, _ in script.jobs(
            settings, results["seeds"], list(script.METHODS), results["runs"]
        )
    ]
    assert list(results["runs"]) == names
    looks = settings.gradients // settings.every + 1
    for name, run in results["runs"].items():
        if name.startswith("tuned"):
            rates = [float(lr) for lr in run["ends"]]
            assert rates[0] < run["best"] < rates[-1], f"{name}: the best lies at the grid's edge"
        if name.startswith("gradients"):
            assert all(len(losses) == looks for losses in run["losses"].values())
            assert len(run["times"]) == looks
    assert script.RESULTS.stat().st_size < 450_000
