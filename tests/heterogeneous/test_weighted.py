"""Weighted gradients are those of one process on the whole batch, however uneven the shares; those of PyTorch's DDP
are not.
"""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.compression import CompressionState, Identity, TopK, compression_hook
from dtcourse.data_parallel import SyncBatchNorm
from dtcourse.heterogeneous import WeightedDataParallel, places
from dtcourse.memory import GradScaler
from dtcourse.pipeline_parallel import Pipeline, one_f_one_b, split
from dtcourse.sharding import fully_shard
from dtcourse.verify import CASES, compare

# Of 12 samples: one rank has little, one has nothing, one has nearly all; and another one in the next step.
UNEVEN = [(5, 6, 1), (0, 9, 3), (1, 0, 11), (4, 4, 4), (0, 0, 12)]
NO_ZERO = [(5, 6, 1), (1, 1, 10), (3, 8, 1)]
SAMPLES = 12


def parameters_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def sgd(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, 0.1, momentum=0.9)


def batch_of(case, step):
    x, y = case.batch(SAMPLES, step)
    return (x.double() if x.is_floating_point() else x), y


def one_process(case, steps, build=None):
    model = (build or case.build)(0).double()
    optimizer = sgd(model)
    for step in range(steps):
        x, y = batch_of(case, step)
        optimizer.zero_grad()
        case.loss(model(x), y).backward()
        optimizer.step()
    return model


def train(case, wrap, all_shares, pieces=1, build=None, scaler=None):
    """pieces: backwards of a rank in a step, each of another number of samples; the last one averages."""
    rank = dist.get_rank()
    inner = (build or case.build)(0 if rank == 0 else 1000 + rank).double()
    model = wrap(inner)
    optimizer = sgd(inner)
    for step, shares in enumerate(all_shares):
        x, y = batch_of(case, step)
        mine = places(shares)[rank]
        pieces_of = torch.tensor(list(mine)).tensor_split([1, 3][: pieces - 1])
        parts = [part for part in pieces_of if len(part)]
        optimizer.zero_grad()
        with model.step(len(mine), scaler.scale if scaler else None):
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                model.require_backward_grad_sync = last
                model.weigh(case.loss(model(x[part]), y[part]), len(part)).backward()
            model.require_backward_grad_sync = True
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return parameters_of(inner)


def hooked(state, hook):
    def wrap(inner):
        model = WeightedDataParallel(inner, bucket_cap_mb=1e-6)
        model.register_comm_hook(state(), hook)
        return model

    return wrap


def normalised(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def torchs(case, all_shares):
    """PyTorch's, as one writes it; no rank may be without samples there."""
    inner = case.build(0).double()
    model, optimizer = TorchDDP(inner), sgd(inner)
    for step, shares in enumerate(all_shares):
        x, y = batch_of(case, step)
        mine = places(shares)[dist.get_rank()]
        optimizer.zero_grad()
        case.loss(model(x[mine.start : mine.stop]), y[mine.start : mine.stop]).backward()
        optimizer.step()
    return parameters_of(inner)


def sent_in_a_step():
    model = WeightedDataParallel(CASES["mlp"].build(0).double())
    x, y = batch_of(CASES["mlp"], 0)
    with traffic.counting() as sent, model.step(2):
        model.weigh(CASES["mlp"].loss(model(x[:2]), y[:2])).backward()
    return sent.bytes_sent(), sum(p.numel() * 8 for p in model.parameters())


def added_up(first, second, synchronised):
    """What two steps without zero_grad are off one process's two. Whether the first one averages: synchronised."""
    case, rank = CASES["mlp"], dist.get_rank()
    whole = case.build(0).double()
    model = WeightedDataParallel(case.build(0).double(), bucket_cap_mb=1e-6)
    for step, shares in enumerate((first, second)):
        x, y = batch_of(case, step)
        case.loss(whole(x), y).backward()
        part = list(places(shares)[rank])
        model.require_backward_grad_sync = synchronised or step == 1
        with model.step(len(part)):
            if part:
                model.weigh(case.loss(model(x[part]), y[part])).backward()
    pairs = zip(model.module.parameters(), whole.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs)


def refusals():
    said = {}
    rank = dist.get_rank()
    case = CASES["mlp"]

    def tried(name, act):
        try:
            act()
            said[name] = "nothing"
        except (ValueError, RuntimeError) as error:
            said[name] = str(error)

    def step(model, declared, weighed=None):
        with model.step(declared):
            if declared:
                x, y = batch_of(case, 0)
                model.weigh(case.loss(model(x[:declared]), y[:declared]), weighed).backward()

    model = WeightedDataParallel(case.build(0).double())
    tried("batch norm", lambda: WeightedDataParallel(normalised(0)))
    tried("batch norm in evaluation", lambda: WeightedDataParallel(normalised(0).eval()))
    synchronised = WeightedDataParallel(SyncBatchNorm.convert(normalised(0)))
    tried("nobody for the statistics", lambda: step(synchronised, 0 if rank == 1 else 3))
    tried("negative", lambda: step(model, -2 if rank == 2 else 3))
    tried("half a sample", lambda: step(model, 2.5 if rank == 2 else 3))
    tried("none at all", lambda: step(model, 0))
    tried("too few weighed", lambda: step(model, 3, 2))
    tried("too many weighed", lambda: model.begin(3) or model.weigh(torch.ones(()), 4))
    fresh = WeightedDataParallel(case.build(0).double())
    tried("a loss per sample", lambda: fresh.weigh(torch.ones(3)))
    tried("weighed outside", lambda: fresh.weigh(torch.ones(())))
    tried("forward outside", lambda: fresh(batch_of(case, 0)[0]))
    tried("frozen", lambda: WeightedDataParallel(case.build(0).requires_grad_(False)))
    fresh.register_comm_hook(None, default_hooks.allreduce_hook)
    tried("second hook", lambda: fresh.register_comm_hook(None, default_hooks.allreduce_hook))
    # with other techniques
    sharded = nn.Linear(6, 3)
    fully_shard(sharded)
    tried("full sharding", lambda: WeightedDataParallel(sharded))
    stages = split([nn.Linear(6, 6) for _ in range(3)], places([1, 1, 1]), one_f_one_b(3, 3), rank)
    pipeline = Pipeline(stages, one_f_one_b(3, 3), lambda y, target: y.sum())
    tried("a pipeline", lambda: WeightedDataParallel(pipeline.module))
    twice = WeightedDataParallel(model.module)
    tried("another wrapper", lambda: step(twice, 3))
    with torch.no_grad():
        said["evaluated"] = tuple(fresh(batch_of(case, 0)[0]).shape)
    return said


def everything():
    found = {}
    for name, case in CASES.items():

        def wrap(inner, unused=case.has_unused):
            return WeightedDataParallel(inner, find_unused_parameters=unused, bucket_cap_mb=1e-6)

        found["uneven", name] = train(case, wrap, UNEVEN)
        found["accumulated", name] = train(case, wrap, UNEVEN, pieces=3)
    mlp = CASES["mlp"]
    found["one bucket", "mlp"] = train(mlp, WeightedDataParallel, UNEVEN)
    identity = hooked(lambda: CompressionState(Identity(takes=torch.float64)), compression_hook)
    found["compression", "mlp"] = train(mlp, identity, UNEVEN, pieces=2)
    found["PyTorch's hook", "mlp"] = train(
        mlp, hooked(lambda: None, default_hooks.allreduce_hook), UNEVEN
    )
    scaler = GradScaler("cpu", init_scale=256.0)
    found["loss scaled", "mlp"] = train(mlp, WeightedDataParallel, UNEVEN, 3, scaler=scaler)
    half = hooked(lambda: None, default_hooks.bf16_compress_hook)
    found["half precision"] = train(mlp, half, UNEVEN)
    everything_kept = hooked(lambda: CompressionState(TopK(1.0)), compression_hook)
    found["sparse, all of it"] = train(mlp, everything_kept, UNEVEN)

    def build(seed):
        return SyncBatchNorm.convert(normalised(seed))

    found["synchronised"] = train(mlp, WeightedDataParallel, NO_ZERO, build=build)
    found["torch"] = torchs(mlp, NO_ZERO), torchs(mlp, [(4, 4, 4)] * 3)
    found["bytes"] = sent_in_a_step()
    found["added up"] = {
        (shares, synchronised): added_up(*shares, synchronised)
        for shares in [((4, 4, 4), (0, 0, 12)), ((0, 6, 6), (4, 4, 4)), ((6, 6, 0), (0, 12, 0))]
        for synchronised in (True, False)
    }
    found["refusals"] = refusals()
    return found


@pytest.fixture(scope="module")
def run():
    return launch(everything, 3, backend="ring")


def test_each_parameter_is_that_of_one_process(run):
    compared = 0
    for what, case in [key for key in run[0] if isinstance(key, tuple)]:
        right = parameters_of(one_process(CASES[case], len(UNEVEN)))
        for found in run:
            compare(found[what, case], right, 1e-12, "parameter")
            compared += 1
    assert compared == 3 * (2 * len(CASES) + 4)


def test_lossy_hooks_get_the_weighted_gradient(run):
    """Their own rounding is left: of bfloat16, of single precision. A wrong weight would be off by tenths."""
    right = parameters_of(one_process(CASES["mlp"], len(UNEVEN)))
    for found in run:
        compare(found["half precision"], right, 2e-2, "parameter")
        compare(found["sparse, all of it"], right, 1e-5, "parameter")


def test_batch_statistics_over_all_samples_are_those_of_one_process(run):
    right = parameters_of(one_process(CASES["mlp"], len(NO_ZERO), normalised))
    for found in run:
        compare(found["synchronised"], right, 1e-10, "parameter")


def test_gradients_of_several_steps_add_up_though_a_rank_has_no_samples(run):
    for found in run:
        for which, error in found["added up"].items():
            assert error < 1e-12, which


def test_torch_s_ddp_is_wrong_with_uneven_shares_and_right_with_even_ones(run):
    right = parameters_of(one_process(CASES["mlp"], 3))
    uneven, even = run[0]["torch"]
    compare(even, right, 1e-12, "parameter")
    off = max(((uneven[n] - p).abs().max() / p.abs().max()).item() for n, p in right.items())
    assert off > 0.05


def test_a_step_sends_the_gradients_once_and_a_number(run):
    """A ring of 3: 2 (p - 1) / p of the gradients; a gathered number goes round to the 2 others."""
    for sent, gradients in (found["bytes"] for found in run):
        assert abs(sent - (4 / 3 * gradients + 2 * 8)) <= 2 * 4 * 8, "blocks are whole numbers"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("batch norm", r"1 normalises with the statistics of this rank's samples.*SyncBatchNorm"),
        ("batch norm in evaluation", "nothing"),
        ("nobody for the statistics", "rank 1 has no samples, and the others would wait for it"),
        ("negative", "0 or more, and rank 2 passed another"),
        ("half a sample", "0 or more, and rank 2 passed another"),
        ("none at all", "no rank has a sample in this step"),
        ("too few weighed", "weighed losses of 2 samples and said that it had 3"),
        ("too many weighed", "3 samples in this step, 0 of them weighed already; got a loss of 4"),
        ("a loss per sample", r"mean over samples, one number; got a loss of shape \(3,\)"),
        ("weighed outside", r"call it in `with model.step\(samples\):`"),
        ("forward outside", "a forward for training is part of a step"),
        ("frozen", "none of the module's parameters needs a gradient"),
        ("full sharding", "WeightedDataParallel.*shard|shard.*WeightedDataParallel"),
        ("a pipeline", "this is a pipeline's, of which each rank has stages of its own"),
        (
            "another wrapper",
            "has another wrapper already, and its gradient would be averaged twice",
        ),
        ("second hook", "a model has one communication hook"),
    ],
)
def test_refusals_are_on_all_ranks_alike(run, what, words):
    for found in run:
        assert re.search(words, found["refusals"][what]), found["refusals"][what]


def test_without_gradients_it_is_the_module(run):
    assert run[0]["refusals"]["evaluated"] == (SAMPLES, 3)


def test_no_copy_shares_its_reducer():
    with pytest.raises(Exception, match="is not copied"):
        launch(lambda: copy.deepcopy(WeightedDataParallel(nn.Linear(2, 1))), 1)
