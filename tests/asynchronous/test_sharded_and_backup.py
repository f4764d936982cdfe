"""Many servers do what one does; backup workers' late gradients are dropped and nobody waits for them."""

from __future__ import annotations

import importlib.util
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.asynchronous import (
    BackupWorkers,
    BoundedStaleness,
    ColocatedWorker,
    ParameterServer,
    ServerLost,
    ShardServer,
    Synchronous,
    Worker,
    bytes_per_step,
)
from dtcourse.collectives import p2p
from dtcourse.emulation import EmulatedNetwork
from dtcourse.verify import CASES, compare

_spec = importlib.util.spec_from_file_location(
    "parameter_server_reference", Path(__file__).with_name("parameter_server_reference.py")
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

RATE, STEPS = 0.1, 3


def parameters_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def sgd(parameters):
    return torch.optim.SGD(parameters, RATE, 0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


def started(case, first_server):
    rank = dist.get_rank()
    return case.build(0 if rank == first_server else 1000 + rank).double()


def work(case, model, worker, number, steps=STEPS):
    for step in range(steps):
        model.zero_grad()
        x, y = reference.batch(case, number, step)
        case.loss(model(x), y).backward()
        worker.push()
        worker.pull()


def _shards(servers, case, rule, make_optimizer):
    """Parameters on every rank: what a server collects, or a worker has pulled last."""
    rank = dist.get_rank()
    model = started(case, servers[0])
    if rank in servers:
        server = ShardServer(model, make_optimizer, rule, servers)
        server.serve()
        server.collect()
        assert sum(s.numel() for s in server.shards) <= -(-total(model) // len(servers))
    else:
        number = sum(r not in servers for r in range(rank))
        with Worker(model, servers) as worker:
            work(case, model, worker, number)
    return parameters_of(model)


def total(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _sharded(servers):
    return {
        (name, make.__name__, type(rule).__name__): _shards(servers, CASES[name], rule, make)
        for name, make, rule in [
            *((name, sgd, Synchronous()) for name in CASES),
            ("mlp", adam, Synchronous()),
            ("mlp", plain, BoundedStaleness(0)),
        ]
    }


def plain(parameters):
    return torch.optim.SGD(parameters, RATE)


@pytest.mark.parametrize(
    ("world_size", "servers"), [(2, (1,)), (3, (0, 2)), (4, (3, 0))], ids=["2", "3", "4"]
)
def test_many_servers_do_what_one_process_does(world_size, servers):
    run = launch(_sharded, world_size, servers)
    makers = {f.__name__: f for f in (sgd, adam, plain)}
    for key, got in run[servers[0]].items():
        name, optimizer, _ = key
        workers = range(world_size - len(servers))
        expected = reference.whole_batch_training(CASES[name], workers, STEPS, makers[optimizer])
        compare(got, expected, 1e-12, "parameter")
        for rank in range(world_size):
            assert all(torch.equal(run[rank][key][n], p) for n, p in got.items()), (key, rank)


def _counted(servers):
    _shards(servers, CASES["mlp"], Synchronous(), sgd)
    return total(CASES["mlp"].build(0))


@pytest.mark.parametrize("servers", [(0,), (0, 1)])
def test_bytes_are_those_of_the_formula(servers):
    run = launch(_counted, 4, servers, record=True)
    num_workers, header = 4 - len(servers), 16
    each = bytes_per_step(run[0], 8, num_workers, len(servers))
    for rank in range(len(servers), 4):
        end = len(servers) * header
        assert run.traffic.bytes_sent(rank, "push") == STEPS * each.worker_sent + end
        assert run.traffic.bytes_received(rank, "pull") == STEPS * each.worker_received
    sent = [run.traffic.bytes_sent(rank, "pull") for rank in servers]
    received = [run.traffic.bytes_received(rank, "push") for rank in servers]
    assert max(sent) == STEPS * each.server_sent
    assert max(received) == STEPS * each.server_received + num_workers * header
    assert sum(sent) == STEPS * num_workers * 8 * run[0]
    assert max(sent) - min(sent) <= STEPS * num_workers * 8, "one number apart at most"


def test_bytes_of_nobody_are_refused():
    with pytest.raises(ValueError, match="at least a worker and a server; got 0 and 1"):
        bytes_per_step(10, 4, 0)


def _one_server_dies():
    """Rank 1 serves until its third update. Rank 0 must not wait for the workers for ever."""
    case, servers, rank = CASES["mlp"], (0, 1), dist.get_rank()
    model = started(case, 0)
    if rank in servers:
        rule = Synchronous()
        server = ShardServer(model, sgd, rule, servers)
        if rank == 1:
            apply = server.apply

            def die(*arguments, **named):
                if server.version == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                apply(*arguments, **named)

            server.apply = die
        server.serve()
    with Worker(model, servers) as worker:
        work(case, model, worker, rank, steps=100)


def test_where_one_of_several_servers_dies_all_others_end_and_say_whom_they_miss():
    run = launch(_one_server_dies, 4, on_failure="continue")
    assert sorted(failure.rank for failure in run.failures) == [0, 1, 2, 3]
    assert "was killed by SIGKILL" in str(run[1])
    for rank in (2, 3):
        assert isinstance(run[rank].__cause__, ServerLost), run[rank]
        assert "parameter server rank 1 is gone" in str(run[rank])
    assert "all workers were lost: rank " in str(run[0])
    assert "an exception ended its training" in str(run[0])


# --- colocated ---------------------------------------------------------------------------------------------------


def _colocated():
    case, rank = CASES["mlp"], dist.get_rank()
    results = {}
    for name, make, rule in (
        ("sgd", sgd, Synchronous),
        ("adam", adam, Synchronous),
        ("bounded", plain, lambda: BoundedStaleness(0)),
    ):
        model = started(case, 0)
        with ColocatedWorker(model, make, rule) as worker:
            work(case, model, worker, rank)
        updates = worker.report.num_updates
        results[name] = parameters_of(model), updates
    return results, total(model)


def test_servers_on_the_workers_ranks_do_what_one_process_does_and_send_what_a_ring_sends():
    run = launch(_colocated, 3, record=True)
    makers, p = {"sgd": sgd, "adam": adam, "bounded": plain}, 3
    for rank in range(p):
        for name, (got, updates) in run[rank][0].items():
            expected = reference.whole_batch_training(CASES["mlp"], range(p), STEPS, makers[name])
            compare(got, expected, 1e-12, "parameter")
            assert updates == (p * STEPS if name == "bounded" else STEPS)
    elements, trainings = run[0][1], 3
    parts = [elements * (i + 1) // p - elements * i // p for i in range(p)]
    for rank, part in enumerate(parts):
        pushed = STEPS * (8 * (elements - part) + (p - 1) * 16) + (p - 1) * 16
        assert run.traffic.bytes_sent(rank, "push") == trainings * pushed
        assert run.traffic.bytes_sent(rank, "pull") == trainings * STEPS * 8 * (p - 1) * part
    ring = 2 * (p - 1) * 8 * elements * STEPS * trainings
    headers = p * (p - 1) * 16 * (STEPS + 1) * trainings
    both = run.traffic.bytes_sent(operation="push") + run.traffic.bytes_sent(operation="pull")
    assert both == ring + headers


def _colocated_seconds():
    """On the virtual clock: emulated seconds of the same training, to the last digit the same in each run."""
    case = CASES["mlp"]
    model = started(case, 0)
    with ColocatedWorker(model, sgd) as worker:
        began = emulation.now()
        work(case, model, worker, dist.get_rank())
        return emulation.now() - began


def test_a_thread_that_serves_has_a_time_of_its_own():
    net = EmulatedNetwork(latency=0.25)
    assert list(launch(_colocated_seconds, 2, network=net, clock="virtual")) == [STEPS * 0.5] * 2


def _one_rank_dies():
    case, rank = CASES["mlp"], dist.get_rank()
    model = started(case, 0)
    # gloo misses a death now and then: then this limit tells.
    group = dist.new_group(timeout=timedelta(seconds=20))
    with ColocatedWorker(model, sgd, group=group) as worker:
        work(case, model, worker, rank, steps=2)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work(case, model, worker, rank, steps=100)


def test_with_a_rank_a_part_of_the_model_is_gone_and_the_others_say_so():
    run = launch(_one_rank_dies, 3, on_failure="continue")
    assert sorted(failure.rank for failure in run.failures) == [0, 1, 2]
    lost = [rank for rank in (0, 2) if "parameter server rank 1 is gone" in str(run[rank])]
    assert lost, "who notices the other's end first may name that"
    for rank in (0, 2):
        assert isinstance(run[rank].__cause__, ServerLost), run[rank]


# --- backup workers ----------------------------------------------------------------------------------------------


def _late_by(steps, rule):
    """Worker 1's first gradient is sent when workers 2 and 3 have ended: they never wait for it."""
    case, rank, token = CASES["mlp"], dist.get_rank(), torch.zeros(1)
    model = started(case, 0)
    if rank == 0:
        report = ParameterServer(model, plain(model.parameters()), rule).serve()
        versions = [one.version for one in report.served if one.what == "apply"]
        assert versions == list(range(1, len(versions) + 1))
        served = [(one.what, one.workers) for one in report.served]
        return parameters_of(model), served, report.staleness, report.num_dropped
    with Worker(model) as worker:
        if rank == 1:
            p2p.recv(token, 2)
            p2p.recv(token, 3)
        work(case, model, worker, rank, steps)
    if rank > 1:
        p2p.send(token, 1)
    return None


def _backups():
    return _late_by(3, BackupWorkers(1)), _free(BackupWorkers(1)), _free(BackupWorkers(0))


def _free(rule):
    """All run as they like: which gradients are late is the machine's choice."""
    case, rank = CASES["mlp"], dist.get_rank()
    model = started(case, 0)
    if rank == 0:
        report = ParameterServer(model, plain(model.parameters()), rule).serve()
        versions = [one.version for one in report.served if one.what == "apply"]
        assert versions == list(range(1, len(versions) + 1))
        served = [(one.what, one.workers) for one in report.served]
        return parameters_of(model), served, report.staleness, report.num_dropped
    with Worker(model) as worker:
        work(case, model, worker, rank, steps=6)
    return None


def test_late_gradients_are_dropped_and_the_rest_is_what_one_process_computes():
    late, free, none = launch(_backups, 4)[0]
    case, workers = CASES["mlp"], (1, 2, 3)
    got, served, staleness, num_dropped = late
    done = [(what, who) for what, who in served if what != "pull"]
    assert done == [("apply", (2, 3))] * 3 + [("drop", (1,))] + [("apply", (1,))] * 2
    assert num_dropped == 1
    for got, served, staleness, num_dropped in (late, free, none):
        expected, _ = reference.replay(served, case, workers, RATE, weight=lambda n: 1 / n)
        assert all(torch.equal(got[n], expected[n]) for n in expected)
        assert set(staleness) == {0}, "what is applied is fresh"
        assert num_dropped + len(staleness) == (9 if served is late[1] else 18)
    whole = reference.whole_batch_training(case, workers, 6, plain)
    compare(none[0], whole, 1e-12, "parameter")
    assert none[3] == 0


@pytest.mark.parametrize("number", [-1, 0.5, True])
def test_a_number_of_backups_below_0_is_refused(number):
    with pytest.raises(ValueError, match=f"the number of backups is 0 or more; got {number}"):
        BackupWorkers(number)
