"""What full sharding costs, in both layouts: bytes sent, bytes held, what happens beside what. Counted,
and held against the formulas."""

from __future__ import annotations

import gc
import time
import weakref
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from dtcourse import emulation, events, launch
from dtcourse.collectives import ring, traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedNetwork
from dtcourse.sharding import FullyShardedDataParallel, MixedPrecisionPolicy
from dtcourse.sharding.flat_parameter import padded_size
from dtcourse.sharding.schedule import Schedule
from dtcourse.sharding.unit import Reduction
from tests.emulation.slow import SlowLinear
from tests.turns import taking_turns

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")

WIDTHS = (5, 11, 7, 13, 3)  # nothing divides by 2, 3 or 4: every unit is padded


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(WIDTHS)])


def sharded(shard, model, **options):
    """A unit a layer; all of them freed after forward, unless said otherwise."""
    options = {"reshard_after_forward": True} | options
    for layer in model:
        shard(layer, **options)
    return shard(model, **options)


def sizes():
    """Elements of each unit."""
    return [sum(p.numel() for p in layer.parameters()) for layer in layers()]


def padded_sizes(shard, ranks):
    """The same with what all ranks keep of them: the flat is padded once, rows each."""
    if shard is FullyShardedDataParallel:
        return [padded_size(n, ranks) for n in sizes()]
    return [
        sum(-(-len(p) // ranks) * ranks * p[0].numel() for p in layer.parameters())
        for layer in layers()
    ]


# --- bytes sent -------------------------------------------------------------------------------------------------


def count_step(shard, options, dtype=None):
    """(messages, bytes) that this rank sends in a training step, by operation and phase."""
    policy = MixedPrecisionPolicy(param_dtype=dtype) if dtype else None
    model = sharded(shard, layers(), mp_policy=policy, **options)
    x = torch.ones(4, WIDTHS[0])
    model(x).float().sum().backward()  # the first step learns the order, and sends as much
    with traffic.counting() as counted:
        model(x).float().sum().backward()
    return {
        (operation, phase): (
            counted.messages_sent(operation=operation, phase=phase),
            counted.bytes_sent(operation=operation, phase=phase),
        )
        for operation in ("all_gather", "reduce_scatter")
        for phase in ("forward", "backward")
    }, counted.bytes_sent()


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
def test_a_step_sends_what_the_formula_says(shard, world_size):
    def step():
        return [
            count_step(shard, {}),
            count_step(shard, {"reshard_after_forward": False}),
            count_step(shard, {}, torch.bfloat16),
        ]

    run = launch(step, world_size, backend="ring")
    for rank in range(world_size):
        for (counts, total), gathers, itemsize in zip(run[rank], (2, 1, 2), (4, 4, 2), strict=True):
            wholes = padded_sizes(shard, world_size)
            gathered = [ring.all_gather_volume(n, world_size, rank, itemsize) for n in wholes]
            reduced = [ring.reduce_scatter_volume(n, world_size, rank, itemsize) for n in wholes]
            gather = (
                sum(s.messages for s in gathered),
                itemsize * sum(s.elements for s in gathered),
            )
            reduce = (sum(s.messages for s in reduced), itemsize * sum(s.elements for s in reduced))
            assert counts["all_gather", "forward"] == gather
            assert counts["all_gather", "backward"] == (gather if gathers == 2 else (0, 0))
            assert counts["reduce_scatter", "forward"] == (0, 0)
            assert counts["reduce_scatter", "backward"] == reduce
            assert total == gathers * gather[1] + reduce[1], "and nothing else is sent"
            # In words: (gathers + 1) (p - 1) / p n, padding included.
            assert total == (gathers + 1) * (world_size - 1) * sum(wholes) // world_size * itemsize


def test_one_and_a_half_times_what_ddp_sends(shard):
    """Sizes that divide evenly, so that there is no padding and the ratio is exact."""

    def build():
        return nn.Sequential(nn.Linear(8, 12, bias=False), nn.Linear(12, 4, bias=False))

    def step():
        x, sent = torch.ones(2, 8), []
        for model in (
            DistributedDataParallel(build()),
            sharded(shard, build()),
            sharded(shard, build(), reshard_after_forward=False),
        ):
            for _ in range(2):
                model(x).sum().backward()
            with traffic.counting() as counted:
                model(x).sum().backward()
            sent.append(counted.bytes_sent())
        return sent

    for ddp, zero3, kept in launch(step, 4, backend="ring"):
        assert zero3 == 1.5 * ddp
        assert kept == ddp


def test_micro_batches_without_sync_send_no_gradients(shard):
    def step():
        model = sharded(shard, layers())
        x, reduced = torch.ones(2, WIDTHS[0]), []
        for sync in (False, False, True):
            model.set_requires_gradient_sync(sync)
            with traffic.counting() as counted:
                model(x).sum().backward()
            reduced.append(counted.bytes_sent(operation="reduce_scatter"))
        return reduced

    first, second, last = launch(step, 2, backend="ring")[0]
    assert (first, second) == (0, 0)
    assert last == 4 * sum(padded_sizes(shard, 2)) // 2


# --- bytes held -------------------------------------------------------------------------------------------------


def all_tensor_bytes():
    """Bytes of every storage of floating-point numbers that Python can see in this process, each once.

    The least of a few readings: gloo's thread lets go of what it has sent a moment after wait() has returned.
    """
    readings = []
    for _ in range(6):
        gc.collect()
        storages = {}
        with torch._C.DisableTorchFunctionSubclass():
            for thing in gc.get_objects():
                kind = type(thing)  # of a DTensor this rank's rows are counted, which gc sees too
                plain = issubclass(kind, torch.Tensor) and not issubclass(kind, DTensor)
                if plain and thing.dtype.is_floating_point:
                    storage = thing.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        readings.append(sum(storages.values()))
        time.sleep(0.02)
    return min(readings)


def left_of_a_model(shard, steps):
    """What is still alive of a model that was made, run and dropped: its class, by what was done with it."""
    alive = []
    for step in steps:
        model = sharded(shard, layers())
        if step != "made":
            output = model(torch.ones(2, WIDTHS[0]))
            if step == "backward":
                output.sum().backward()
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
            output = None
        parts = [*model.modules(), *model.parameters()]
        known = [(type(part).__name__, weakref.ref(part)) for part in parts]
        del model, parts
        gc.collect()
        alive.append([name for name, reference in known if reference() is not None])
    return alive


def test_a_model_that_is_dropped_is_freed(shard):
    """The collector sees no reference through C++: of a graph's nodes, hooks on tensors, and gradients."""
    steps = ["made", "forward", "backward"]
    assert launch(left_of_a_model, 2, shard, steps)[0] == [[], [], []]


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
def test_a_rank_holds_16_bytes_a_parameter_over_the_ranks(shard, world_size):
    """ZeRO's 16 Psi / N: stored in 32 bits, computed in 16, Adam's two moments. Padding
    is computed, not allowed for."""

    def step():
        gc.collect()
        gc.freeze()  # what was there before is not looked through again and again, and is in no difference
        start = all_tensor_bytes()
        model = sharded(
            shard, layers(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        )
        held = [all_tensor_bytes() - start]
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, WIDTHS[0])).float().sum().backward()
            held.append(all_tensor_bytes() - start)
            optimizer.step()
            held.append(all_tensor_bytes() - start)
        counters = sum(s["step"].nbytes for s in optimizer.state.values())
        # A parameter of which this rank keeps nothing has moments of no elements, and a counter all the same.
        return held, counters

    part = sum(padded_sizes(shard, world_size)) // world_size
    kept = sum(sizes())
    run = launch(step, world_size)
    for held, counters in run:
        sharded_only, after_backward, after_step, *_ = held
        assert sharded_only == 4 * part
        assert after_backward == 8 * part
        # The moments are of the parameters: padding has none.
        padding = sum(padded_sizes(shard, world_size)) - kept
        assert 16 * part - 8 * padding <= after_step - counters <= 16 * part
        assert held[3:] == [after_step, after_step]
    assert sum(held[2] - counters for held, counters in run) == 8 * part * world_size + 8 * kept


def test_no_more_than_two_units_are_whole(shard):
    """Counted where memory is given and taken; their bytes at most are those of two neighbours."""

    def step():
        model = sharded(shard, layers(), mp_policy=MixedPrecisionPolicy(torch.bfloat16))
        for _ in range(3):
            model(torch.ones(1, WIDTHS[0])).float().sum().backward()

    timeline = launch(step, 2, record=True).timeline
    flat = shard is FullyShardedDataParallel
    wholes = [2 * n for n in (padded_sizes(shard, 2) if flat else sizes())]
    neighbours = [a + b for a, b in pairwise(wholes)]
    for rank in range(2):
        live, peak, units = 0, 0, 0
        most = 0
        for event in timeline.of(rank=rank, kind="memory"):
            sign = {"gather": 1, "free": -1}[event.name.split()[0]]
            live, units = live + sign * event.bytes, units + sign
            peak, most = max(peak, live), max(most, units)
        assert (live, most) == (0, 2)
        assert peak == max(neighbours)


# --- what happens beside what -----------------------------------------------------------------------------------


def test_the_next_unit_is_fetched_while_one_computes(shard):
    """The order of events in the second step, on a network of any speed."""

    def step():
        model = sharded(shard, layers())
        for _ in range(2):
            model(torch.ones(1, WIDTHS[0])).sum().backward()
            events.instant("step ends")

    timeline = launch(step, 2, record=True).timeline
    for rank in range(2):
        mine = list(timeline.of(rank=rank))
        ends = [e.start for e in mine if e.name == "step ends"]
        second = [e for e in mine if ends[0] < e.start < ends[1]]
        moment = {}
        for e in second:
            if e.kind == "compute":
                moment[e.name, "starts"], moment[e.name, "ends"] = e.start, e.end
            elif e.kind == "memory":
                moment.setdefault((e.name, "forward"), e.start)
                moment[e.name, "backward"] = e.start
        for i in range(3):  # forward: unit i + 1 sets out before unit i has computed
            assert moment[f"gather {i + 1}", "forward"] < moment[f"forward {i}", "ends"]
        for i in (3, 2, 1):  # backward: unit i - 1 does
            assert moment[f"gather {i - 1}", "backward"] < moment[f"backward {i}", "ends"]
        order = [e.name for e in second if e.kind == "compute"]
        assert order == [f"forward {i}" for i in range(4)] + [f"backward {i}" for i in (3, 2, 1, 0)]
        reduces = [e.start for e in second if e.name == "reduce_scatter"]
        assert len(reduces) == 4
        assert sum(start < moment["backward 0", "ends"] for start in reduces) >= 3


UNITS, WIDTH = 8, 256
FORWARD, BACKWARD = 0.2, 0.4  # seconds of all units


def timed(shard, blocking, count=4):
    """Emulated seconds of each step."""
    if blocking:  # what a version without overlap would do: the test below must see it
        Schedule._prefetch = lambda self: None
        pre_forward = Schedule.pre_forward

        def pre_forward_alone(self, unit):
            self._known_orders.clear()
            pre_forward(self, unit)

        Schedule.pre_forward = pre_forward_alone
        begin = Reduction.__init__

        def start_and_wait(self, *args):
            begin(self, *args)
            self.wait_for_reduce_scatter()

        Reduction.__init__ = start_and_wait
    torch.manual_seed(0)
    seconds = {"forward": FORWARD / UNITS, "backward": BACKWARD / UNITS}
    layers = (SlowLinear(WIDTH, WIDTH, bias=False, **seconds) for _ in range(UNITS))
    model = sharded(shard, nn.Sequential(*layers))
    times = []
    for _ in range(count):
        dist.barrier()
        start = emulation.now()
        model(torch.ones(1, WIDTH, requires_grad=True)).sum().backward()
        times.append(emulation.now() - start)
        model.zero_grad()
    return times


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_transfers_hide_behind_computation(shard, backend):
    """A network on which gathering everything takes as long as forward: 1.2 s one after
    the other, 0.675 side by side."""
    ranks = 2
    whole = UNITS * WIDTH * WIDTH * 4
    gather = FORWARD
    network = EmulatedNetwork(latency=0.0, bandwidth=(ranks - 1) / ranks * whole / gather)
    emulated = {"backend": backend, "network": network, "clock": "virtual"}
    compute, transfers = FORWARD + BACKWARD, 3 * gather
    # What has nothing to hide behind: the first gather of each direction, the last reduce-scatter.
    exposed = 3 * gather / UNITS
    for one_after_the_other in launch(timed, ranks, shard, True, **emulated):
        assert one_after_the_other[2:] == pytest.approx([compute + transfers] * 2)
    for together in launch(timed, ranks, shard, False, **emulated):
        assert together[2:] == pytest.approx([compute + exposed] * 2)
