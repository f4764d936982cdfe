"""The parameter server: what it computes is what one process computes in the same order; nobody is left waiting."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dtcourse import emulation, launch
from dtcourse.asynchronous import (
    Asynchronous,
    BackupWorkers,
    BoundedStaleness,
    ParameterServer,
    ServerLost,
    Synchronous,
    Worker,
    inverse_staleness,
)
from dtcourse.asynchronous.parameter_servers import roles
from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.collectives import p2p
from dtcourse.emulation import EmulatedNetwork
from dtcourse.verify import CASES, compare

_spec = importlib.util.spec_from_file_location(
    "parameter_server_reference", Path(__file__).with_name("parameter_server_reference.py")
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

RATE, STEPS = 0.1, 4
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, RATE),
    "momentum": lambda parameters: torch.optim.SGD(parameters, RATE, 0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
}


def parameters_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def started(case):
    """Another start on every rank: the server's is the one that counts."""
    rank = dist.get_rank()
    return case.build(0 if rank == 0 else 1000 + rank).double()


def work(case, model, worker, steps=STEPS):
    """A worker's whole training."""
    rank = dist.get_rank()
    for step in range(steps):
        model.zero_grad()
        x, y = reference.batch(case, rank, step)
        case.loss(model(x), y).backward()
        worker.push()
        worker.pull()


def train(case, rule, optimizer="sgd", steps=STEPS):
    """(parameters, [(what, workers)], staleness) on the server; parameters on a worker."""
    model = started(case)
    if dist.get_rank() == 0:
        report = ParameterServer(model, OPTIMIZERS[optimizer](model.parameters()), rule).serve()
        served = [(one.what, one.workers) for one in report.served]
        return parameters_of(model), served, report.staleness
    with Worker(model) as worker:
        work(case, model, worker, steps)
    return parameters_of(model)


def _everything():
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for name, case in CASES.items():
        for optimizer in OPTIMIZERS if name == "mlp" else ["sgd"]:
            results["synchronous", name, optimizer] = train(case, Synchronous(), optimizer)
        results["asynchronous", name] = train(case, Asynchronous())
        results["bounded 0", name] = train(case, BoundedStaleness(0))
    case = CASES["mlp"]
    results["bounded 1", "mlp"] = train(case, BoundedStaleness(1), steps=8)
    results["aware", "mlp"] = train(case, Asynchronous(inverse_staleness), steps=8)
    # PyTorch's own, on the same workers.
    group = dist.new_group(list(range(1, size)))
    if rank:
        model = DistributedDataParallel(case.build(0).double(), process_group=group)
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = reference.batch(case, rank, step)
            case.loss(model(x), y).backward()
            optimizer.step()
        results["ddp"] = parameters_of(model.module)
    return results


@pytest.fixture(
    scope="module", params=[(2, "gloo"), (3, "ring"), (4, "gloo")], ids=["2", "3 on ring", "4"]
)
def run(request):
    world_size, backend = request.param
    return launch(_everything, world_size, backend=backend)


def close(got, expected):
    compare(got, expected, 1e-12, "parameter")


def test_synchronous_updates_are_those_of_one_process_and_of_ddp(run):
    workers = range(1, len(run))
    for key, (got, served, staleness) in run[0].items():
        if key[0] != "synchronous":
            continue
        _, name, optimizer = key
        close(
            got, reference.whole_batch_training(CASES[name], workers, STEPS, OPTIMIZERS[optimizer])
        )
        pulls = [("pull", (w,)) for w in workers]
        assert served == [("apply", tuple(workers)), *pulls] * STEPS
        assert staleness == [0] * len(workers) * STEPS
        for rank in workers:
            close(run[rank][key], got)
    for rank in workers:
        close(run[0]["synchronous", "mlp", "momentum"][0], run[rank]["ddp"])


def test_bounded_staleness_0_is_synchronous(run):
    for name in CASES:
        got, served, _ = run[0]["bounded 0", name]
        close(got, run[0]["synchronous", name, "sgd"][0])
        assert sum(what == "apply" for what, _ in served) == STEPS * (len(run) - 1)


def test_any_order_of_pushes_and_pulls_is_what_one_process_computes_in_that_order(run):
    num_workers = len(run) - 1
    keys = [k for k in run[0] if k[0] in ("asynchronous", "bounded 0", "bounded 1", "aware")]
    assert len(keys) == 2 * len(CASES) + 2
    for key in keys:
        got, served, staleness = run[0][key]
        expected, their_staleness = reference.replay(
            served,
            CASES[key[1]],
            range(1, len(run)),
            RATE,
            weight=lambda number: 1.0,
            lr_factor=lambda s, aware=key[0] == "aware": (
                (1 / max(1, s) if aware else 1.0) / num_workers
            ),
        )
        assert all(torch.equal(got[name], expected[name]) for name in expected), key
        assert staleness == their_staleness
        if num_workers == 1:
            assert set(staleness) == {0}


def test_no_worker_is_answered_further_ahead_of_the_slowest_than_it_may_be(run):
    for key, bound, steps in (("bounded 0", 0, STEPS), ("bounded 1", 1, 8)):
        pushed = dict.fromkeys(range(1, len(run)), 0)
        for what, (worker, *_) in run[0][key, "mlp"][1]:
            pushed[worker] += what == "apply"
            if what == "pull":
                active = [n for n in pushed.values() if n < steps] or [steps]
                assert pushed[worker] - min(active) <= bound


# --- who waits, without a clock --------------------------------------------------------------------------------


def _the_fast_one_first(rule, steps, pulls_last):
    """Worker 1 begins when worker 2 has taken its steps: this ends only where worker 2 need not wait for worker 1."""
    case, rank, token = CASES["mlp"], dist.get_rank(), torch.zeros(1)
    model = started(case)
    if rank == 0:
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        report = ParameterServer(model, optimizer, rule).serve()
        return [(one.what, *one.workers) for one in report.served], report.staleness
    with Worker(model) as worker:
        if rank == 1:
            p2p.recv(token, 2)
            work(case, model, worker, steps)
        else:
            work(case, model, worker, steps - 1)
            worker.push()
            if pulls_last:
                worker.pull()
            p2p.send(token, 1)
    return None


def _both_rules():
    free = _the_fast_one_first(Asynchronous(), 6, pulls_last=True)
    bounded = _the_fast_one_first(BoundedStaleness(2), 3, pulls_last=False)
    return free, bounded


def test_a_slow_worker_holds_up_none_or_those_that_are_too_far_ahead():
    (_, staleness), (bounded, _) = launch(_both_rules, 3)[0]
    assert staleness == [0] * 6 + [6] + [0] * 5, "worker 1's first gradient is six updates old"
    third = [i for i, one in enumerate(bounded) if one == ("pull", 2)][2]
    assert [one[0] for one in bounded if one[1] == 1][:2] == ["apply", "pull"]
    assert bounded[:4] == [("apply", 2), ("pull", 2)] * 2
    assert bounded.index(("apply", 1)) < third, "two steps ahead it may be, and not three"


class Fake:
    """What a rule sees of a server; remembers what the rule called."""

    def __init__(self, rule, *workers):
        self.rule, self.active, self.num_workers, self.version = rule, set(workers), len(workers), 0
        self.num_pushed, self.pulled = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
        self.calls = []

    def apply(self, workers, weight, lr_factor=1.0):
        self.version += 1
        self.calls.append(("apply", list(workers), weight, lr_factor))

    def drop(self, worker):
        self.calls.append(("drop", worker))

    def answer(self, workers):
        for worker in workers:
            self.pulled[worker] = self.version
        self.calls.append(("answer", list(workers)))

    def push(self, worker):
        """What the rule calls when this worker's gradient is there."""
        self.num_pushed[worker] += 1
        self.rule.received(self, worker)
        calls, self.calls = self.calls, []
        return calls

    def end(self, worker):
        self.active.discard(worker)
        self.rule.left(self, worker)
        calls, self.calls = self.calls, []
        return calls


def test_synchronous_waits_for_those_that_still_take_part():
    server = Fake(Synchronous(), 1, 2, 3)
    assert server.push(3) == server.push(1) == []
    assert server.end(2) == [("apply", [1, 3], 0.5, 1.0), ("answer", [1, 3])]
    assert server.end(1) == []
    assert server.push(3) == [("apply", [3], 1.0, 1.0), ("answer", [3])]


def test_bounded_staleness_lets_the_fast_wait_for_the_slowest():
    server = Fake(BoundedStaleness(1), 1, 2, 3)
    assert server.push(1)[-1] == ("answer", [1])
    assert server.push(1)[-1] == ("answer", [])
    assert server.push(2)[-1] == ("answer", [2])
    assert server.push(3)[-1] == ("answer", [1, 3]), "all have pushed one: 1 may be one ahead"
    assert server.push(1)[-1] == ("answer", [])
    assert server.push(2)[-1] == ("answer", [2])
    assert server.end(3)[-1] == ("answer", [1])


def test_the_rate_is_divided_by_the_staleness():
    server = Fake(Asynchronous(inverse_staleness), 1, 2)
    calls = [server.push(w)[0] for w in (1, 1, 1, 2, 1)]
    assert [factor for _, _, _, factor in calls] == [1 / 2, 1 / 2, 1 / 2, 1 / 3 / 2, 1 / 2]
    assert {weight for _, _, weight, _ in calls} == {1.0}


def _over_nccl():
    """As if the model were on GPUs and NCCL carried the group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles.device, "is_gpu", lambda where: True)
        patch.setattr(roles, "gpu_backend_of", lambda group: object())
        with pytest.raises(ValueError, match="the order of posting: pass group=") as caught:
            Worker(torch.nn.Linear(1, 1))
    return str(caught.value)


def test_nccl_which_has_an_order_of_its_own_is_refused():
    assert "take" in launch(_over_nccl, 1)[0]


# --- how far p updates go ----------------------------------------------------------------------------------------

CONSTANT = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "weight decay": lambda parameters: torch.optim.SGD(parameters, 1e-4, weight_decay=1.0),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.001, weight_decay=0.1),
}


def _moved():
    """How far one gradient of each worker moves the model, by optimizer and rule; the gradient is 2 everywhere."""
    found = {}
    for name, make in CONSTANT.items():
        for rule in (Synchronous(), Asynchronous(), BoundedStaleness(0)):
            model = torch.nn.Linear(1, 1, bias=False).double()
            torch.nn.init.constant_(model.weight, 8.0)
            if dist.get_rank() == 0:
                optimizer = make(model.parameters())
                ParameterServer(model, optimizer, rule).serve()
                found[name, type(rule).__name__] = 8.0 - model.weight.item()
                assert (
                    optimizer.param_groups[0]["lr"] == make([torch.ones(1)]).param_groups[0]["lr"]
                )
                continue
            with Worker(model) as worker:
                (2 * model(torch.ones(1, 1).double())).sum().backward()
                worker.push()
                worker.pull()
    return found


def test_p_asynchronous_updates_go_as_far_as_a_synchronous_one_with_adam_too():
    found = launch(_moved, 5)[0]
    for name in CONSTANT:
        one = found[name, "Synchronous"]
        # what decays, decays from a smaller value in the second of four updates
        assert found[name, "Asynchronous"] == pytest.approx(one, rel=1e-3), name
        assert found[name, "BoundedStaleness"] == pytest.approx(one, rel=1e-3), name
    assert found["adam", "Synchronous"] == pytest.approx(0.1)


# --- bytes, and time where it is emulated ------------------------------------------------------------------------


def _counted(rule):
    case = CASES["frozen"]
    train(case, rule)
    model = case.build(0).double()
    return 8 * sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "rule", [Synchronous(), Asynchronous()], ids=["synchronous", "asynchronous"]
)
def test_bytes_are_those_of_the_formula(rule):
    run = launch(_counted, 4, rule, record=True)
    nbytes, header, p = run[0], 16, 3
    sent, messages = run.traffic.bytes_sent, run.traffic.messages_sent
    for rank in range(1, 4):
        assert sent(rank, "push") == STEPS * (nbytes + header) + header
        assert messages(rank, "push") == 2 * STEPS + 1
        assert run.traffic.bytes_received(rank, "pull") == STEPS * nbytes
    assert sent(0, "pull") == STEPS * p * nbytes and sent(0, "push") == 0
    assert messages(0, "pull") == STEPS * p
    assert run.traffic.bytes_received(0, "push") == p * (STEPS * (nbytes + header) + header)


def _seconds(rule):
    """Emulated seconds of a worker's pushes and pulls, and how large the model is."""
    case = CASES["mlp"]
    model = started(case)
    if dist.get_rank() == 0:
        ParameterServer(model, OPTIMIZERS["sgd"](model.parameters()), rule).serve()
        return None
    with Worker(model) as worker:
        began = emulation.now()
        work(case, model, worker)
        return emulation.now() - began, 8 * sum(p.numel() for p in model.parameters())


def test_synchronous_on_the_virtual_clock_waits_for_the_server_s_link():
    """All gradients come in by one port and all answers leave by one. In the first step one after the other; later the
    gradients of those that were answered first come in while the last is answered, and only its own comes after.
    """
    net = EmulatedNetwork(latency=1e-3, bandwidth=1e6)
    run = launch(_seconds, 4, Synchronous(), network=net, clock="virtual")
    nbytes = run[1][1]
    t, h = nbytes / 1e6, 16 / 1e6
    first, later = 2e-3 + 3 * (h + t) + 3 * t, 2e-3 + 3 * t + (3 * h + t)
    assert run[3][0] == pytest.approx(first + (STEPS - 1) * later, rel=1e-9), "it is answered last"


def test_asynchronous_on_the_slept_clock_takes_at_least_its_messages_time():
    net = EmulatedNetwork(latency=0.02)
    run = launch(_seconds, 3, Asynchronous(), network=net, clock="wall")
    assert min(run[1][0], run[2][0]) >= STEPS * 2 * 0.02


# --- who dies ----------------------------------------------------------------------------------------------------


def _one_is_killed(rule):
    """Worker 2 dies after two steps; worker 3 gives up by an exception after three, and lives."""
    case, rank = CASES["mlp"], dist.get_rank()
    model = started(case)
    if rank == 0:
        report = ParameterServer(model, OPTIMIZERS["sgd"](model.parameters()), rule).serve()
        return report.lost, [one.workers for one in report.served if one.what == "apply"]
    try:
        with Worker(model) as worker:
            if rank == 1:
                work(case, model, worker, 6)
            work(case, model, worker, rank)
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 3:
                raise LookupError("no more data")
    except LookupError:
        pass
    return worker.num_pushed


@pytest.mark.parametrize(
    "rule", [Synchronous(), BoundedStaleness(0)], ids=["synchronous", "bounded"]
)
def test_a_worker_that_dies_is_named_and_the_others_go_on(rule):
    run = launch(_one_is_killed, 4, rule, on_failure="continue")
    assert [failure.rank for failure in run.failures] == [2]
    lost, applied = run[0]
    assert sorted(lost) == [2, 3]
    assert lost[2].startswith("rank 2 was lost after 2 gradients (") and "onnection" in lost[2]
    assert lost[3] == "rank 3 was lost after 3 gradients (an exception ended its training)"
    assert (run[1], run[3]) == (7, 3)
    counted = [worker for workers in applied for worker in workers]
    assert [counted.count(worker) for worker in (1, 2, 3)] == [7, 2, 3]
    assert any("goes on with" in line for line in run.output[0])


def _the_server_dies():
    case, rank = CASES["mlp"], dist.get_rank()
    model = started(case)
    if rank == 0:
        rule = BoundedStaleness(5)
        received = rule.received

        def die_at_the_fourth(server, worker):
            if server.version == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            received(server, worker)

        rule.received = die_at_the_fourth
        ParameterServer(model, OPTIMIZERS["sgd"](model.parameters()), rule).serve()
    try:
        with Worker(model, timeout=30) as worker:  # gloo misses a death once in 150 times
            work(case, model, worker, 100)
    except ServerLost as error:
        try:
            worker.push()
        except ValueError as again:
            return str(error), str(again)
    return None


def test_a_server_that_dies_is_named_by_its_workers():
    run = launch(_the_server_dies, 3, on_failure="continue")
    assert [failure.rank for failure in run.failures] == [0]
    for rank in (1, 2):
        error, again = run[rank]
        assert re.match(r"parameter server rank 0 is gone \(.*([Cc]onnection|[Tt]imed out)", error)
        assert f"this worker, rank {rank}, has pushed" in error
        assert again.startswith("push() after the worker has ended")


def _no_answer():
    case, store = CASES["mlp"], dist.group.WORLD.get_group_store()
    model = started(case)
    if dist.get_rank() == 0:
        ParameterServer(model, OPTIMIZERS["sgd"](model.parameters()))  # and does not serve
        store.wait(["given up"])
        return None
    worker = Worker(model, timeout=1)
    with pytest.raises(ServerLost) as lost:
        work(case, model, worker)
    store.set("given up", "")
    return str(lost.value)


def test_a_server_that_does_not_answer_in_time_counts_as_lost():
    _, error = launch(_no_answer, 2)
    assert re.match(r"parameter server rank 0 is gone \(.*[Tt]imed out", error)


def _all_die():
    case = CASES["mlp"]
    model = started(case)
    if dist.get_rank():
        Worker(model)
        os._exit(3)
    ParameterServer(model, OPTIMIZERS["sgd"](model.parameters())).serve()


def test_a_server_without_any_worker_left_says_so():
    run = launch(_all_die, 3, on_failure="continue")
    text = str(run[0])
    # Which of the two is missed last is chance.
    assert re.search(r"all workers were lost: rank [12] was lost after 0 gradients", text)


def _gone_before_serving():
    case = CASES["mlp"]
    model = started(case)
    if dist.get_rank():
        Worker(model)
        return None

    def irecv(*args):
        raise RuntimeError("Connection closed by peer")

    server = ParameterServer(model, OPTIMIZERS["sgd"](model.parameters()))
    Link.irecv = irecv
    with pytest.raises(RuntimeError) as lost, pytest.warns(RuntimeWarning):
        server.serve()
    return str(lost.value)


def test_workers_that_are_gone_before_the_server_serves():
    text = launch(_gone_before_serving, 3)[0]
    assert "all workers were lost" in text and "rank 1 was" in text and "rank 2 was" in text


# --- bad input ---------------------------------------------------------------------------------------------------


def _refused():
    rank, said = dist.get_rank(), []
    alone = dist.new_group([0])

    def attempt(call):
        try:
            call()
            said.append("accepted")
        except ValueError as error:
            said.append(str(error))

    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), RATE)
    attempt(lambda: Worker(model, 3))
    attempt(lambda: Worker(model, -1))
    attempt(lambda: Worker(model, 0))
    attempt(lambda: Worker(model, rank))
    attempt(lambda: ParameterServer(model, sgd, server=1))
    other = torch.nn.Linear(2, 2 + (rank == 2))
    attempt(lambda: ParameterServer(other, sgd) if rank == 0 else Worker(other))
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    attempt(lambda: ParameterServer(frozen, sgd) if rank == 0 else Worker(frozen))
    half = torch.optim.SGD([model.weight], RATE)
    attempt(lambda: ParameterServer(model, half) if rank == 0 else Worker(model))
    spare = BackupWorkers(2)
    attempt(lambda: ParameterServer(model, sgd, spare) if rank == 0 else Worker(model))
    if rank == 0:
        attempt(lambda: ParameterServer(model, sgd, group=alone))
    return said


def test_what_cannot_be_served_is_refused_on_all_ranks():
    run = launch(_refused, 3)
    for said in run:
        assert said[0] == "servers=(3,) in a group of 3: each is another rank, 0 to 2"
        assert said[1].startswith("servers=(-1,) in a group of 3")
        assert said[2] == "servers=(0,), so rank 0 is a server and works"
        assert said[3] == "rank 0 names (0,) as servers, rank 1 (1,): all ranks name the same"
        assert said[4] == "servers=(1,), so rank 0 is no server and serves"
        assert "rank 0 has weight [2, 2]" in said[5] and "rank 2 has weight [3, 2]" in said[5]
        assert said[6] == "the model has no parameter that requires a gradient"
        assert said[7].endswith(
            "the optimizer does not have bias: make it of model.parameters(), and of this model"
        )
        assert said[8].endswith("2 backups of 2 workers leave no gradient to wait for: at most 1")
    assert run[0][9].startswith("1 of 1 ranks are servers, and no worker is left")
    assert run[1][7].startswith(
        "rank 0 could not go on, so no rank does: ValueError: the optimizer"
    )


def _out_of_turn():
    model = torch.nn.Linear(2, 2)
    if dist.get_rank() == 0:
        return ParameterServer(model, torch.optim.SGD(model.parameters(), RATE)).serve().num_updates
    said = []
    with Worker(model) as worker:
        for call in (worker.pull, worker.push, worker.push, worker.close, worker.pull):
            try:
                call()
            except ValueError as error:
                said.append(str(error))
    return said


def test_calls_out_of_turn_are_refused_and_closing_pulls():
    assert list(launch(_out_of_turn, 2)) == [
        1,
        [
            "pull() without a push(): the server answers each gradient once",
            "push() twice: pull() the parameters in between",
            "pull() after the worker has ended: make another Worker, with its servers",
        ],
    ]


@pytest.mark.parametrize("bound", [-1, 1.5, True, None])
def test_a_bound_below_0_is_refused(bound):
    with pytest.raises(ValueError, match=f"max_ahead={bound}"):
        BoundedStaleness(bound)
