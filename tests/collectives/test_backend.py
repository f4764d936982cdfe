"""PyTorch's own DDP, FSDP, tensor parallelism and checkpoints on our backends: the same numbers as on gloo."""

from __future__ import annotations

import collections
import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import launch, torch_private
from dtcourse.collectives.backend import register as backend
from dtcourse.collectives.backend.process_group import AlgorithmGroup
from dtcourse.launch import RankFailure

RANKS = 4
BACKENDS = backend.choices()


# --- what runs on the ranks: each returns plain tensors, the same whatever the backend is -----------------------


def _model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def _data(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x = torch.randn(5, 6, generator=generator)
    return x, torch.randint(0, 3, (5,), generator=generator)


def _train(model, optimizer, steps=3):
    losses = []
    for step in range(steps):
        x, y = _data(step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _ddp():
    from torch.nn.parallel import DistributedDataParallel

    # Another start on each rank: DDP broadcasts rank 0's. Tiny buckets: several all-reduces in one backward.
    model = DistributedDataParallel(_model(seed=dist.get_rank()), bucket_cap_mb=0.0005)
    losses = _train(model, torch.optim.SGD(model.parameters(), 0.1))
    with model.no_sync():
        F.cross_entropy(model(_data(9)[0]), _data(9)[1]).backward()
    return [losses, *[p.detach() for p in model.parameters()], model.module[0].weight.grad]


def _ddp_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    results = []
    for hook in ("allreduce", "fp16", "powersgd", "static graph"):
        model = DistributedDataParallel(_model(), static_graph=hook == "static graph")
        if hook == "allreduce":
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        elif hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=2
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        results.append(_train(model, torch.optim.SGD(model.parameters(), 0.1)))
        results += [p.detach() for p in model.parameters()]
    return results


def _fully_shard():
    from torch.distributed.fsdp import fully_shard

    model = _model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    losses = _train(model, torch.optim.SGD(model.parameters(), 0.1))
    return [losses, *[p.full_tensor().detach() for p in model.parameters()]]


def _fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        _model(),
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        use_orig_params=True,
    )
    losses = _train(model, torch.optim.SGD(model.parameters(), 0.1))
    with FullyShardedDataParallel.summon_full_params(model):
        return [losses, *[p.detach().clone() for p in model.parameters()]]


def _tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _model()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(100 * step + mesh["dp"].get_local_rank())
        x = torch.randn(5, 6, generator=generator)
        y = torch.randint(0, 3, (5,), generator=generator)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *[p.full_tensor().detach() for p in model.parameters()]]


def _dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,))
    x = torch.arange(40.0).reshape(5, 8)
    sharded = distribute_tensor(x, mesh, [Shard(0)])  # 5 rows on 4 ranks: uneven
    moved = sharded.redistribute(placements=[Shard(1)])
    product = sharded.redistribute(placements=[Shard(1)]) @ distribute_tensor(x.T, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    return [
        sharded.full_tensor(),
        moved.to_local(),
        product.redistribute(placements=[Replicate()]).to_local(),
        product.redistribute(placements=[Shard(0)]).to_local(),
    ]


def _functional():
    from torch.distributed import _functional_collectives as functional

    rank, world = dist.get_rank(), dist.group.WORLD
    x = torch.arange(8.0) + rank
    return [
        functional.all_reduce(x, "sum", world) * 1,
        functional.all_reduce(x, "avg", world) * 1,
        functional.all_gather_tensor(x, 0, world) * 1,
        functional.reduce_scatter_tensor(x, "sum", 0, world) * 1,
        functional.all_to_all_single(x, None, None, world) * 1,
        functional.broadcast(x, 1, world) * 1,
        *[t * 1 for t in functional.all_reduce_coalesced([x, x[:3] * 2], "sum", world)],
        *[t * 1 for t in functional.all_gather_into_tensor_coalesced([x, x[:3] * 2], world)],
        *[t * 1 for t in functional.reduce_scatter_tensor_coalesced([x], "sum", [0], world)],
    ]


def _plain():
    """Every function of torch.distributed."""
    rank = dist.get_rank()
    x = torch.arange(6.0).reshape(2, 3) + 10 * rank
    assert x.dtype == torch.float64
    seen = []

    def keep(*tensors):
        seen.extend(t.clone() for t in tensors)

    t = x.clone()
    dist.all_reduce(t)
    keep(t)
    t = x.clone()
    dist.all_reduce(t, op=dist.ReduceOp.MAX, async_op=True).wait()
    keep(t)
    t = x.to(torch.complex64) * 1j
    dist.all_reduce(t)
    keep(t)
    t = x.T.clone().T  # not contiguous
    dist.all_reduce(t)
    keep(t)
    t = x.clone()
    dist.broadcast(t, src=2)
    keep(t)
    t = x.clone()
    dist.reduce(t, dst=1)
    if rank == 1:
        keep(t)
    out = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(out, x)
    keep(*out)
    t = torch.empty(RANKS * 2, 3)
    dist.all_gather_into_tensor(t, x)
    keep(t)
    t = torch.empty(2, 3)
    dist.reduce_scatter(t, [x * (i + 1) for i in range(RANKS)])
    keep(t)
    t = torch.empty(2)
    dist.reduce_scatter_tensor(t, torch.arange(8.0) + rank)
    keep(t)
    gathered = [torch.empty_like(x) for _ in range(RANKS)] if rank == 3 else None
    dist.gather(x, gathered, dst=3)
    keep(*gathered or [])
    t = torch.empty(2, 3)
    dist.scatter(t, [x + i for i in range(RANKS)] if rank == 1 else None, src=1)
    keep(t)
    out = [torch.empty(2, 3) for _ in range(RANKS)]
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    t = torch.empty(8)
    dist.all_to_all_single(t, torch.arange(8.0) + rank)
    keep(t)
    sends = [(rank + j) % 3 for j in range(RANKS)]
    receives = [(j + rank) % 3 for j in range(RANKS)]
    t = torch.empty(sum(receives), 2)
    dist.all_to_all_single(
        t, torch.arange(2.0 * sum(sends)).reshape(-1, 2) + 100 * rank, receives, sends
    )
    keep(t)
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects[3] == {"rank": 3, "text": "xxx"}
    objects = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["from 0"]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as coalesced:
        a, b = x.clone(), x[0].clone()
        dist.all_reduce(a)
        dist.all_reduce(b)
    coalesced.wait()
    keep(a, b)
    t = torch.empty(2, 3)
    right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, t, left)]
    ):
        request.wait()
    keep(t)
    if rank == 0:
        got = torch.empty(2, 3)
        sources = sorted(dist.recv(got) for _ in range(RANKS - 1))  # from whoever comes first
        assert sources == [1, 2, 3]
    else:
        dist.send(x, 0)
    dist.barrier()
    odd = dist.new_group([1, 3])
    if rank in (1, 3):
        t = x.clone()
        dist.all_reduce(t, group=odd)
        dist.broadcast(t, src=3, group=odd)
        keep(t)
    return seen


def _alltoall_lists():
    rank = dist.get_rank()
    out = [torch.empty(2, 3) for _ in range(RANKS)]
    dist.all_to_all(out, [torch.full((2, 3), 10.0 * rank + i) for i in range(RANKS)])
    return out


def _checkpoint(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,))
    whole = torch.arange(40.0).reshape(5, 8)
    state = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "step": torch.tensor(7)}
    dcp.save(state, checkpoint_id=folder)
    fresh = {
        "w": distribute_tensor(torch.zeros(5, 8), mesh, [Shard(1)]),  # resharded on load
        "step": torch.tensor(0),
    }
    dcp.load(fresh, checkpoint_id=folder)
    return [fresh["w"].full_tensor(), fresh["step"]]


PROGRAMS = {
    "ddp": _ddp,
    "hooks": _ddp_hooks,
    "fully_shard": _fully_shard,
    "fsdp1": _fsdp1,
    "tensor_parallel": _tensor_parallel,
    "dtensor": _dtensor,
    "functional": _functional,
    "plain": _plain,
    "checkpoint": _checkpoint,
}


def _all(folder):
    """All programs in one launch, and which methods of the inner group were called for them."""
    import warnings

    warnings.simplefilter("ignore")
    # then a different order of summation shows in the 15th digit
    torch.set_default_dtype(torch.float64)
    results = {}
    for name, program in PROGRAMS.items():
        arguments = [folder] if name == "checkpoint" else []
        results[name] = [t.detach().clone() for t in program(*arguments)]
    return results


@functools.cache
def _outcome(name, folder):
    try:
        return list(launch(_all, RANKS, folder, backend=name, timeout=240))
    except RankFailure as failure:
        return failure  # once, for all programs


def _run(name, folder):
    outcome = _outcome(name, folder)
    if isinstance(outcome, RankFailure):
        pytest.fail(str(outcome))
    return outcome


@pytest.fixture(scope="module")
def on_gloo(tmp_path_factory):
    return _run("gloo", str(tmp_path_factory.mktemp("gloo")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("ours"))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", BACKENDS)
def test_same_numbers_as_on_gloo(name, program, on_gloo, folder):
    ours = _run(name, f"{folder}/{name}")
    for rank in range(RANKS):
        expected = on_gloo[rank][program]
        assert len(expected) == len(ours[rank][program]) > 0
        for want, got in zip(expected, ours[rank][program], strict=True):
            # The order of a sum differs from algorithm to algorithm, so its last bits may. One of the hooks adds
            # in fp16, where 1e-3 is the last bit.
            near = 1e-3 if program == "hooks" else 1e-11
            torch.testing.assert_close(got, want, rtol=near, atol=near * 0.1)


# --- nothing but send and receive -------------------------------------------------------------------------------


class _Witness:
    """Stands in for the inner group, and writes down what is asked of it."""

    def __init__(self, inner):
        self.inner, self.called = inner, collections.Counter()

    def __getattr__(self, name):
        self.called[name] += 1
        return getattr(self.inner, name)


def _call_everything():
    """Calls every data method of ProcessGroup by the name that torch has for it, and DDP and FSDP from C++."""
    group = dist.group.WORLD
    n, rank = group.size(), group.rank()
    group.channel.transport.host = witness = _Witness(group.inner)
    before = group.inner._get_sequence_number_for_group()
    x, big = torch.ones(4), torch.ones(4 * n)
    many = [torch.ones(4) for _ in range(n)]
    c10d = dist.distributed_c10d
    root = rank == 0
    calls = {
        "allreduce": lambda f: f([x], dist.AllreduceOptions()),
        "allreduce_coalesced": lambda f: f([x, big], dist.AllreduceCoalescedOptions()),
        "broadcast": lambda f: f([x], dist.BroadcastOptions()),
        "reduce": lambda f: f([x], dist.ReduceOptions()),
        "allgather": lambda f: f([many], [x], c10d.AllgatherOptions()),
        "allgather_coalesced": lambda f: f([[m] for m in many], [x], c10d.AllgatherOptions()),
        "gather": lambda f: f([many] if root else [], [x], dist.GatherOptions()),
        "scatter": lambda f: f([x], [many] if root else [], dist.ScatterOptions()),
        "reduce_scatter": lambda f: f([x], [many], dist.ReduceScatterOptions()),
        "alltoall": lambda f: f([torch.empty(4) for _ in many], many, dist.AllToAllOptions()),
        "barrier": lambda f: f(dist.BarrierOptions()),
    }
    calls |= dict.fromkeys(("all_gather_single", "_allgather_base"), lambda f: f(big, x))
    calls |= dict.fromkeys(
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        lambda f: f([big], [x]),
    )
    calls |= dict.fromkeys(
        ("reduce_scatter_single", "_reduce_scatter_base"),
        lambda f: f(x, big, dist.ReduceScatterOptions()),
    )
    calls |= dict.fromkeys(
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        lambda f: f([x], [big], dist.ReduceScatterOptions()),
    )
    calls |= dict.fromkeys(
        ("all_to_all_single", "alltoall_base"), lambda f: f(torch.empty(4 * n), big, [], [])
    )
    calls["send"] = lambda f: f([x], (rank + 1) % n, 3)
    calls["recv"] = lambda f: f([x.clone()], (rank - 1) % n, 3)
    later = []
    for name, call in calls.items():
        work = call(getattr(group, name))
        later.append(work) if name in ("send", "recv") else work.wait()
    later.append(group.send([x], (rank + 1) % n, 4))
    later.append(group.recv_anysource([x.clone()], 4))
    for work in later:
        work.wait()
    for program in (_ddp, _fully_shard, _functional):
        program()
    # gloo numbers all that it does, send and receive included, also what C++ asks of it without passing by us.
    numbered = group.inner._get_sequence_number_for_group() - before
    group.inner.allreduce([torch.ones(1)]).wait()
    assert group.inner._get_sequence_number_for_group() - before == numbered + 1
    return sorted(calls), dict(witness.called), numbered


@pytest.mark.parametrize("name", BACKENDS)
def test_the_inner_group_sees_only_send_and_receive(name):
    run = launch(_call_everything, RANKS, backend=name)
    for called, seen, numbered in run:
        assert set(called) == torch_private.DATA_METHODS - {"monitored_barrier", "recv_anysource"}
        seen.pop(
            "supports_coalescing", None
        )  # read, to learn whether it has batches; nothing is sent
        assert set(seen) == {"recv", "recv_anysource", "send"}
        assert numbered == sum(seen.values())


def test_every_data_method_is_ours():
    kinds = AlgorithmGroup.__mro__
    ours = {name for kind in kinds[: kinds.index(dist.ProcessGroup)] for name in vars(kind)}
    for name in torch_private.DATA_METHODS:
        assert name in ours, f"{name} would run on the inner gloo, silently"


def test_the_docstring_says_what_to_import():
    lines = [line.strip() for line in backend.__doc__.splitlines()]
    said = [line for line in lines if line.startswith("from ") or line == "backend.register()"]
    assert len(said) == 2
    exec("\n".join(said), {})
