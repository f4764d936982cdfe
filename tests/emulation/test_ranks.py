"""Emulated clusters, end to end: the same times in every run, and those that arithmetic by hand says."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import RankFailure
from dtcourse.simulator import collective_cost as cost
from tests.cut_mlp import tensor_parallel_step
from tests.turns import taking_turns

INFINITE = float("inf")


@contextlib.contextmanager
def both_cores_busy():
    """Two processes that compute all the time."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# --- what runs on the ranks -------------------------------------------------------------------------------------


def attention(x):
    q = x.view(2, 2, 16, 32).requires_grad_()
    return lambda: nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()


def checkpointed(x, reentrant):
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    x.requires_grad_()
    return lambda: checkpoint(block, x, use_reentrant=reentrant).sum().backward()


def sharded_adamw(x):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(x).sum().backward()
        optimizer.step()

    return step


WORK = {
    "attention": attention,
    "checkpointed": lambda x: checkpointed(x, reentrant=False),
    "checkpointed, reentrant": lambda x: checkpointed(x, reentrant=True),
    "tensor-parallel MLP": tensor_parallel_step,
    "fully_shard with AdamW": sharded_adamw,
}
PRODUCT = 2 * 32 * 64 * 64  # FLOPs of 32 rows by a matrix of 64 x 64
# FLOPs per rank on p ranks, by hand.
# forward, the first again (the last's output is not needed), backward
FLOPS = {
    "attention": lambda p: (2 + 5) * 2 * (2 * 2 * 16 * 16 * 32),
    "checkpointed": lambda p: (2 + 1 + 4) * PRODUCT,
    "checkpointed, reentrant": lambda p: (2 + 2 + 4) * PRODUCT,
    "tensor-parallel MLP": lambda p: (2 * 2 + 2 * 2 + 2) * PRODUCT // p,  # x needs no gradient
    "fully_shard with AdamW": lambda p: (2 + 3) * PRODUCT,
}


def one_step(name):
    """Emulated time, computed and waited of the second step."""
    from dtcourse import emulation

    torch.manual_seed(0)
    step = WORK[name](torch.rand(32, 64))
    step()
    before = emulation.account()
    step()
    after = emulation.account()
    return tuple(
        getattr(after, part) - getattr(before, part) for part in ("total", "computed", "waited")
    )


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 4, *taking_turns(2, 8, about="dtcourse/emulation/")])
@pytest.mark.parametrize("name", list(WORK))
def test_a_step_is_its_operations_and_its_waiting(name, p):
    """At one operation per second, and memory for nothing, computed time is the FLOPs by hand."""
    devices = EmulatedDevice(flops=1.0, bandwidth=INFINITE)
    network = EmulatedNetwork(latency=100.0, bandwidth=1.0)
    run = launch(one_step, p, name, devices=devices, network=network)
    for total, computed, waited in run:
        assert computed == FLOPS[name](p)
        assert total == pytest.approx(computed + waited, rel=1e-12)
        talks = p > 1 and name in ("tensor-parallel MLP", "fully_shard with AdamW")
        assert (waited > 0) == talks


def optimizer_bytes(how, sharded):
    from dtcourse import emulation

    model = nn.Linear(64, 64, bias=False)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = emulation.account().computed
    optimizer.step()
    return emulation.account().computed - before


@pytest.mark.parametrize(
    ("how", "sharded"),
    [({"fused": True}, False), ({"fused": True}, True), ({"foreach": True}, False)],
)
def test_an_optimizers_step_is_its_bytes(how, sharded):
    run = launch(optimizer_bytes, 2, how, sharded, devices=EmulatedDevice(INFINITE, 1.0))
    nbytes = 64 * 64 * 4 // (2 if sharded else 1)
    if how == {"fused": True}:
        assert run[0] == pytest.approx(7 * nbytes, abs=64)
    else:  # part by part through memory: twice as much and more
        assert run[0] > 14 * nbytes


def pass_on(x):
    """Rank 0 computes and sends, rank 1 receives and computes: the times at which each is done."""
    from dtcourse import emulation

    if dist.get_rank() == 0:
        dist.send(x @ x, 1)
    else:
        dist.recv(x, 0)
        x @ x
    return emulation.now()


def test_messages_without_a_network_take_no_time_and_are_waited_for():
    cost = 2 * 64**3
    run = launch(pass_on, 2, torch.ones(64, 64), devices=EmulatedDevice(flops=cost))
    assert list(run) == [1.0, 2.0]


# --- the same in every run ---------------------------------------------------------------------------------------


def train(kind):
    from dtcourse import emulation

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    if kind == "torch":
        from torch.nn.parallel import DistributedDataParallel as DDP
    else:
        from dtcourse.data_parallel import DistributedDataParallel as DDP
    model = DDP(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.AdamW(model.parameters())
    times = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(16, 64)).square().sum().backward()
        optimizer.step()
        times.append(emulation.now())
    return times


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "ring"])
@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_two_runs_take_the_same_time_to_the_last_digit(backend, kind):
    def run():
        run = launch(
            train, 4, kind, backend=backend, record=True,
            devices=EmulatedDevice(1e9, 1e9), network=EmulatedNetwork(1e-5, 1e8, gap=1e-6),
        )  # fmt: skip
        events = [(e.name, e.rank, e.lane, e.start, e.end) for e in run.timeline]
        return list(run), run.emulated_seconds, sorted(events)

    idle = run()
    with both_cores_busy():
        busy = run()
    assert idle == busy


# --- composition -------------------------------------------------------------------------------------------------


def collective_seconds(cases):
    """Emulated seconds of each collective, from a moment at which all ranks stand alike."""
    import importlib

    from dtcourse import emulation

    seconds = []
    for algorithm, collective, nbytes in cases:
        dist.barrier()
        before = emulation.now()
        call = getattr(
            importlib.import_module(f"dtcourse.collectives.{algorithm}"), collective, None
        )
        x, size = torch.ones(nbytes // 4), dist.get_world_size()
        if collective in ("broadcast", "reduce"):
            call(x, 0)
        elif collective == "all_reduce":
            call(x)
        elif collective == "reduce_scatter_single":
            call(x[: len(x) // size].clone(), x)
        elif collective == "all_gather_single":
            call(x, x[: len(x) // size].clone())
        elif collective == "all_to_all_single":
            call(torch.empty_like(x), x)
        seconds.append(emulation.now() - before)
    return seconds


MODELLED = [
    (algorithm, collective)
    for algorithm, collectives in {
        "naive": ("broadcast", "reduce", "all_reduce", "reduce_scatter_single", "all_gather_single",
                  "all_to_all_single"),
        "ring": ("broadcast", "reduce", "all_reduce", "reduce_scatter_single", "all_gather_single"),
        "tree": ("broadcast", "reduce", "all_reduce"),
        "double_tree": ("broadcast", "reduce", "all_reduce"),
        "halving_doubling": ("all_reduce", "reduce_scatter_single", "all_gather_single"),
        "pairwise": ("all_to_all_single",),
    }.items()
    for collective in collectives
]  # fmt: skip


@pytest.mark.parametrize("p", [4, *taking_turns(2, 8, about="dtcourse/emulation/")])
def test_every_algorithm_takes_what_the_model_says(p):
    """Two sources: formulas from the papers, and messages that take ports one after the other.

    Powers of two, and one chunk: tests/simulator has those that follow each other.
    """
    network = EmulatedNetwork(latency=1e-4, bandwidth=1e8, gap=5e-5)
    link = cost.Link(network.latency, 1 / network.bandwidth, gap=network.gap)
    cases = [(*one, p * n * 4) for one in MODELLED for n in (16, 4096)]
    run = launch(collective_seconds, p, cases, network=network, clock="virtual")
    for index, (algorithm, collective, nbytes) in enumerate(cases):
        predicted = cost.seconds(algorithm, collective.removesuffix("_single"), nbytes, p, link)
        measured = max(seconds[index] for seconds in run)
        assert measured == pytest.approx(predicted, rel=1e-9), (algorithm, collective, nbytes)


def chunked_ring(nbytes, chunks):
    from dtcourse import emulation
    from dtcourse.collectives import ring
    from dtcourse.collectives.reduce_ops import Reduction

    seconds = {}
    for chunk in chunks:
        dist.barrier()
        before = emulation.now()
        ring.all_reduce_steps(
            torch.ones(nbytes // 4),
            Reduction.of(dist.ReduceOp.SUM, dist.get_world_size(), torch.float32),
            None,
            chunk,
        )
        seconds[chunk] = emulation.now() - before
    return seconds


def together():
    """All ranks go on from one moment: a ring leaves them a few latencies apart."""
    from dtcourse import emulation

    moment = torch.tensor([emulation.now()], dtype=torch.double)
    dist.all_reduce(moment, op=dist.ReduceOp.MAX)
    emulation.sleep(moment.item() + 1.0 - emulation.now())


def overlapping(bucket_mb):
    """Emulated seconds of a backward with an all-reduce of each gradient, and what of it was waiting."""
    from dtcourse import emulation
    from dtcourse.data_parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)]), bucket_cap_mb=bucket_mb
    )
    for _ in range(2):  # after the first, buckets are built again
        loss = model(torch.rand(16, 64)).sum()
        together()
        before = emulation.account()
        loss.backward()
    after = emulation.account()
    return after.total - before.total, after.waited - before.waited


def test_our_ddp_over_our_ring_scales_as_the_model_says():
    """8 ranks: a step is its computation and the communication that backward cannot hide."""
    device = EmulatedDevice(flops=1e9)
    network = EmulatedNetwork(latency=1e-5, bandwidth=1e9, gap=1e-5)
    link = cost.Link(network.latency, 1 / network.bandwidth, gap=network.gap)
    one_bucket = 8 * 64 * 64 * 4
    for p in (2, 4, 8):
        run = launch(overlapping, p, 25.0, backend="ring", devices=device, network=network)
        total, waited = run[0]
        all_reduce = cost.seconds("ring", "all_reduce", one_bucket, p, link)
        backward = (2 * 8 - 1) * 2 * 16 * 64 * 64 / device.flops
        assert waited == pytest.approx(all_reduce, rel=0.02)
        assert total == pytest.approx(backward + all_reduce, rel=0.02)


def test_overlap_hides_what_backward_still_has_to_do():
    """A bucket per layer: each all-reduce is shorter than a layer's backward, so the last one alone is waited for."""
    device = EmulatedDevice(flops=1e9)
    network = EmulatedNetwork(latency=1e-6, bandwidth=1e9)
    link = cost.Link(network.latency, 1 / network.bandwidth)
    layer = 64 * 64 * 4
    run = launch(overlapping, 4, layer / 2**20, backend="ring", devices=device, network=network)
    one = cost.seconds("ring", "all_reduce", layer, 4, link)
    assert one < 2 * 2 * 16 * 64 * 64 / device.flops
    for _, waited in run:
        assert waited == pytest.approx(one, rel=0.02)


def half_as_fast():
    from dtcourse import emulation

    a = torch.rand(64, 64)
    a = a @ a
    computed = emulation.now()
    dist.all_reduce(a)
    return computed, emulation.now()


def test_a_rank_half_as_fast_is_waited_for():
    fast = EmulatedDevice(flops=2e6)
    run = launch(
        half_as_fast, 3, devices=[fast, fast, fast.slower(2)], network=EmulatedNetwork(0.1)
    )
    product = 2 * 64**3 / 2e6
    assert [computed for computed, _ in run] == pytest.approx([product, product, 2 * product])
    assert [end for _, end in run] == pytest.approx([2 * product + 0.4] * 3)  # 2 (p - 1) latencies


def straggler():
    from dtcourse import emulation

    if dist.get_rank() == 1:
        emulation.sleep(5.0)
    dist.barrier()
    return emulation.account()


def test_a_straggler_sleeps_on_the_emulated_clock_alone():
    run = launch(straggler, 2, network=EmulatedNetwork(0.5), clock="virtual")
    assert [a.total for a in run] == [6.0, 6.0]
    assert [a.slept for a in run] == [0.0, 5.0]
    assert [a.waited for a in run] == [6.0, 1.0]
    assert run.emulated_seconds == 6.0 and run.overrun == 0.0
    assert run.total_seconds < 5.0 or run.seconds < 5.0  # nobody slept


# --- arrival order -----------------------------------------------------------------------------------------------


def first_come():
    from dtcourse import emulation

    x = torch.zeros(1)
    if dist.get_rank() == 0:
        return [dist.recv(x) for _ in range(2)]
    emulation.sleep(0.4 if dist.get_rank() == 1 else 0.01)
    dist.send(x, 0)
    return None


def test_the_virtual_clock_refuses_what_arrives_first():
    with pytest.raises(RankFailure, match=r'launch.*clock="wall"'):
        launch(first_come, 3, network=EmulatedNetwork(1e-3), clock="virtual")


def test_on_the_wall_clock_the_straggler_comes_last():
    assert launch(first_come, 3, network=EmulatedNetwork(1e-3), clock="wall")[0] == [2, 1]


def products():
    a = torch.rand(64, 64)
    for _ in range(10):
        a @ a
    dist.all_reduce(a)


@pytest.mark.slow
def test_on_the_wall_clock_a_busy_machine_is_emulated_more_slowly(capsys):
    """0.5 ms per product is less than this machine takes beside what Python adds: once more, and slower."""
    run = launch(
        products, 2, devices=EmulatedDevice(flops=1e11), network=EmulatedNetwork(1e-4), clock="wall"
    )
    assert run.slowdown > 1
    assert "times slower" in capsys.readouterr().err
    emulated = 10 * 2 * 64**3 / 1e11 + 2 * 1e-4
    assert run.accounts[0].computed == pytest.approx(emulated - 2e-4, rel=0.01)
    assert run.overrun <= 0.03 or run.slowdown >= 8
    assert run.emulated_seconds >= emulated


def waits_for_the_slow_one():
    """Seconds that this rank has waited in a barrier, and for a message: rank 1 comes to each 0.2 s late."""
    rank, x, waited = dist.get_rank(), torch.zeros(1), []
    for meet in (dist.barrier, lambda: dist.send(x, 0) if rank else dist.recv(x, 1)):
        emulation.sleep(0.2 if rank else 0.0)
        before = emulation.account().waited
        meet()
        waited.append(emulation.account().waited - before)
    return waited


@pytest.mark.parametrize("network", [None, EmulatedNetwork(1e-3)])
@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_on_the_wall_clock_a_slower_rank_is_waited_for(backend, network):
    """Without a network, too: it was taken for a busy machine."""
    devices = EmulatedDevice()
    run = launch(
        waits_for_the_slow_one, 2, backend=backend, devices=devices, network=network, clock="wall"
    )
    for early, late in zip(*run, strict=True):
        assert early > 0.1 > late
    assert run.overrun < 0.25


def sends_once():
    x = torch.zeros(1 << 20)
    dist.recv(x, 0) if dist.get_rank() else dist.send(x, 1)


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_on_the_wall_clock_without_a_network_a_message_takes_its_real_time(backend):
    run = launch(
        sends_once, 2, backend=backend, devices=EmulatedDevice(), clock="wall", record=True
    )
    messages = [one for one in run.timeline.events if one.name in ("send", "recv")]
    assert {one.rank for one in messages} == {0, 1}
    assert all(one.end > one.start for one in messages)


def meets_without_messages():
    emulation.sleep(0.02 if dist.get_rank() else 0.0)
    dist.monitored_barrier()


def test_a_wait_that_no_message_times_is_not_taken_for_a_busy_machine():
    """It grows as all is emulated slower: 20, 400, 8,000 times, which had no end."""
    with pytest.warns(UserWarning, match="do ranks wait for each other by a store"):
        run = launch(meets_without_messages, 2, devices=EmulatedDevice(), clock="wall")
    assert 1 < run.slowdown <= 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"devices": 3}, "devices= is a dtcourse.emulation.EmulatedDevice, or a list with one per rank; got 3"),
        ({"devices": [EmulatedDevice(1.0)]}, "devices= has 1 devices for 2 ranks"),
        ({"devices": EmulatedDevice(1.0), "clock": "sun"}, "clock is .virtual. or .wall.; got 'sun'"),
        ({"network": 1e-3}, "network= is a dtcourse.emulation.EmulatedNetwork; got 0.001"),
        ({"clock": "virtual"}, "give devices= or network= as well"),
    ],
)  # fmt: skip
def test_what_cannot_be_emulated_is_refused_before_a_rank_starts(options, says):
    with pytest.raises(ValueError, match=says):
        launch(half_as_fast, 2, **options)


def test_nothing_is_emulated_without_being_asked_for():
    with pytest.raises(ValueError, match="nothing was emulated"):
        _ = launch(half_as_fast, 2).accounts
