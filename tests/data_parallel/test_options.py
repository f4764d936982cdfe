"""DistributedDataParallel's keywords: those of PyTorch, with its meaning, or refused with
a sentence. And copies of it."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.verify import CASES, compare, on_ranks, one_process

THEIRS = list(inspect.signature(TorchDDP.__init__).parameters.values())[2:]  # after self and module


def test_arguments_come_in_pytorchs_order():
    ours = list(inspect.signature(DistributedDataParallel.__init__).parameters)
    assert ours[2:10] == [p.name for p in THEIRS[:8]]


def test_every_default_of_pytorchs_is_taken_and_every_keyword_known():
    """New keywords of a new PyTorch fail here: say in options.py what becomes of them."""

    def step():
        DistributedDataParallel(nn.Linear(2, 2), **{p.name: p.default for p in THEIRS})
        said = {}
        for name in [p.name for p in THEIRS] + ["bucket_size"]:
            try:
                DistributedDataParallel(nn.Linear(2, 2), **{name: ["something"]})
            except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
                said[name] = f"{type(error).__name__}: {error}"
        return said

    (said,) = launch(step, 1)
    for name in ("check_reduction", "delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision",
                 "skip_all_reduce_unused_params", "bucket_cap_mb_list", "batched_grad_copy"):  # fmt: skip
        assert said[name].startswith(
            f"NotImplementedError: {name}=['something'] is not taken here: "
        )
    assert (
        said["bucket_size"] == "TypeError: DistributedDataParallel takes no keyword 'bucket_size'"
    )


def test_gradients_of_their_own_or_views():
    """Not views: a gradient that is kept is as it was, at the price of N elements more."""

    def step(as_view):
        case, kept = CASES["mlp"], []
        model = DistributedDataParallel(case.build(0), gradient_as_bucket_view=as_view)
        for i in range(3):
            model.zero_grad()
            case.loss(*(model(case.batch(8, i)[0]), case.batch(8, i)[1])).backward()
            gradient = model.module[0].weight.grad
            kept.append((gradient, gradient.clone()))
        buckets = {b.buffer().untyped_storage().data_ptr() for b in model.reducer.buckets}
        inside = [p.grad.untyped_storage().data_ptr() in buckets for p in model.parameters()]
        model.zero_grad(set_to_none=False)
        case.loss(model(case.batch(8, 0)[0]), case.batch(8, 0)[1]).backward()
        again = torch.equal(kept[0][1], model.module[0].weight.grad)
        return set(inside), torch.equal(*kept[1]), again  # buckets are built again after the first

    assert launch(step, 2, True)[1] == ({True}, False, True)
    assert launch(step, 2, False)[1] == ({False}, True, True)


def test_gradients_of_their_own_equal_one_process():
    def step():
        options = {"gradient_as_bucket_view": False, "bucket_cap_mb": 1e-4}
        wrap = partial(DistributedDataParallel, **options)
        return {name: on_ranks(wrap, CASES[name]) for name in ("mlp", "tied", "frozen")}

    for steps in launch(step, 2):
        for name, got in steps.items():
            for mine, truth in zip(got.gradients, one_process(CASES[name]).gradients, strict=True):
                compare(mine, truth)


class Counts(nn.Module):
    """A layer, and a buffer of each rank's own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mine", torch.tensor(float(dist.get_rank())))
        nn.init.constant_(self.layer.weight, dist.get_rank() + 1.0)

    def forward(self, x):
        return self.layer(x)


SYNCS = [
    {},
    {"broadcast_buffers": False},
    {"forward_sync_buffers": True},
    {"forward_sync_buffers": False},
    {"forward_sync_buffers": False, "broadcast_buffers": False},
    {"init_sync": False},
    {"init_sync": False, "broadcast_buffers": False},
]


def test_what_is_sent_at_the_start_and_before_each_forward_is_pytorchs():
    def values(kind, options):
        model = Counts()
        wrapped = kind(model, **options)
        seen = [model.layer.weight[0, 0].item(), model.mine.item()]
        model.mine.fill_(10.0 + dist.get_rank())
        wrapped(torch.ones(1, 2)).sum().backward()
        return [*seen, model.mine.item()]

    def step():
        return [[values(kind, o) for o in SYNCS] for kind in (DistributedDataParallel, TorchDDP)]

    for rank, (ours, theirs) in enumerate(launch(step, 2)):
        assert ours == theirs
        assert ours[0] == [1.0, 0.0, 10.0]
        assert ours[1] == [1.0, rank, 10.0 + rank]
        assert ours[6] == [rank + 1.0, rank, 10.0 + rank]


def test_without_init_sync_nothing_is_sent():
    def step():
        with traffic.counting() as counted:
            DistributedDataParallel(nn.Linear(2, 2), init_sync=False)
        return counted.bytes_sent()

    assert list(launch(step, 2, backend="ring")) == [0, 0]


def test_an_axis_of_a_mesh():
    """Ranks 0 and 2 share a batch, and 1 and 3 another."""

    def step():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "other"))
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False), device_mesh=mesh["data"])
        model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        try:
            DistributedDataParallel(nn.Linear(2, 1), device_mesh=mesh)
        except ValueError as error:
            return model.module.weight.grad[0, 0].item(), str(error)

    run = launch(step, 4)
    assert [mean for mean, _ in run] == [1.0, 2.0, 1.0, 2.0]
    assert "the mesh has 2: pass the one of data parallelism, as in mesh['data']" in run[0][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_ids": [0]}, r"for a module on one GPU, and this one is on cpu: leave it out"),
        ({"device_ids": [0, 1]}, r"a rank has one device, and device_ids=\[0, 1\]: start a rank for each"),
        ({"output_device": 0}, r"output_device=0 goes with device_ids=\[0\]"),
        ({"dim": 1}, r"dim=1 would say how one process cuts a batch"),
    ],
)  # fmt: skip
def test_devices_that_do_not_fit(options, message):
    def step():
        DistributedDataParallel(nn.Linear(2, 2), device_ids=[], output_device=None, dim=0)
        try:
            DistributedDataParallel(nn.Linear(2, 2), **options)
        except ValueError as error:
            return str(error)

    (said,) = launch(step, 1)
    assert re.search(message, said), said


@pytest.mark.gpu
def test_inputs_are_moved_to_the_one_device():
    def step():
        here = torch.device("cuda", 0)
        model = DistributedDataParallel(nn.Linear(2, 2).to(here), device_ids=[0], output_device=0)
        return model(torch.ones(1, 2)).device.type

    assert launch(step, 1)[0] == "cuda"


# --- copies ------------------------------------------------------------------------------------------------------


def copies(how):
    """A model that has been trained, its copy, and what training gives each of them apart."""
    case = CASES["mlp"]
    model = DistributedDataParallel(case.build(dist.get_rank()), find_unused_parameters=True)
    model.register_comm_hook(None, lambda state, bucket: pytest.fail("the copy has none"))
    model.note = "kept"
    made = copy.deepcopy(model) if how == "copied" else pickle.loads(pickle.dumps(model))
    assert made.find_unused_parameters and made.note == "kept"
    assert all(
        torch.equal(a, b) and a is not b
        for a, b in zip(model.parameters(), made.parameters(), strict=True)
    )
    x, y = (t.chunk(2)[dist.get_rank()] for t in case.batch(8, 0))
    case.loss(made(x), y).backward()
    assert all(p.grad is None for p in model.parameters())
    return {n: p.grad for n, p in made.module.named_parameters()}


@pytest.mark.parametrize("how", ["copied", "pickled"])
def test_copies_have_buckets_and_hooks_of_their_own(how):
    truth = one_process(CASES["mlp"], steps=1, samples=8).gradients[0]
    for gradients in launch(copies, 2, how):
        compare(gradients, truth)


def test_a_copy_takes_the_default_group_or_none():
    def step():
        model = DistributedDataParallel(nn.Linear(2, 2), process_group=dist.new_group([0, 1]))
        said = []
        for make in (copy.deepcopy, pickle.dumps):
            try:
                make(model)
            except ValueError as error:
                said.append(str(error))
        return said

    for said in launch(step, 2):
        assert len(said) == 2
        assert all(
            "takes the default group, and this one has another: copy or save its .module" in s
            for s in said
        )
