"""Replicas that drifted apart: the first tensor and the rank, over any placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch, sharding
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.debugging import ReplicasDrifted, ReplicaWatch, compare_replicas
from dtcourse.hybrid import HybridConfig
from tests.hybrid import layouts
from tests.parameters import test_same_model


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


def trained(wrap=lambda model: model, optimizer=torch.optim.Adam):
    model = wrap(build())
    made = optimizer(model.parameters(), lr=0.1)
    model(torch.ones(4, 3) + dist.get_rank()).sum().backward()
    made.step()
    return model, made


def changed(model, optimizer, change, **options):
    """What is found when one rank has done something to its own: (tensor, ranks, others, also, sentence)."""
    with torch.no_grad():
        change(model, optimizer)
    drift = compare_replicas(model, optimizer, **options)
    return drift.tensor, drift.ranks, drift.others, drift.also, str(drift)


def on(rank, change):
    return lambda model, optimizer: change(model, optimizer) if dist.get_rank() == rank else None


def add(name):
    return lambda model, _: dict(model.named_parameters())[name].view(-1)[0].add_(1e-6)


def whole_models():
    """Four replicas. What is found of each change."""
    found = {"nothing": changed(*trained(DistributedDataParallel), lambda *_: None)}
    changes = {
        "a weight": on(2, add("module.2.weight")),
        "a slot": on(1, lambda _, o: next(iter(o.state.values()))["exp_avg"].add_(1)),
        "a rate": on(3, lambda _, o: o.param_groups[0].update(lr=0.2)),
        "no step": on(0, lambda _, o: o.state.clear()),
        "two of four": lambda model, _: (
            add("module.0.bias")(model, _) if dist.get_rank() % 2 else None
        ),
    }
    for name, change in changes.items():
        found[name] = changed(*trained(DistributedDataParallel), change)
    found["statistics"] = changed(
        *trained(DistributedDataParallel), lambda *_: None, statistics=True
    )
    return found


def on_a_schedule():
    """A rank that leaves step 5 of 6 out is told of after step 6, on all ranks: the gradients were averaged."""
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ReplicaWatch(model, optimizer, every=3)
    try:
        for step in range(1, 7):
            model(torch.ones(4, 3) + dist.get_rank() + step).square().sum().backward()
            if not (dist.get_rank() == 2 and step == 5):
                optimizer.step()
            optimizer.zero_grad()
            watch.step()
    except ReplicasDrifted as error:
        return error.step, error.drift.ranks, str(error)
    return None


def cut_models():
    """Two by two: what is cut over one axis is compared over the other alone."""
    mesh = test_same_model.axes()
    model = test_same_model.cut(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = {"tensor": changed(model, optimizer, lambda *_: None)}
    found["a slice"] = changed(model, optimizer, on(2, lambda m, _: m.output.weight[0].add_(1)))
    zero = trained(
        optimizer=lambda p, lr: sharding.ZeroRedundancyOptimizer(p, torch.optim.Adam, lr=lr)
    )
    found["zero"] = changed(*zero, lambda *_: None)
    # two copies of a module in shards
    pair = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    sharded = trained(lambda m: sharding.fully_shard(m, mesh=pair), torch.optim.AdamW)
    found["shards"] = changed(*sharded, lambda *_: None)
    shard = next(i for i, p in enumerate(sharded[0].parameters()) if p.numel())
    found["a shard"] = changed(
        *sharded, on(3, lambda _, o: list(o.state.values())[shard]["exp_avg_sq"].add_(1))
    )
    config = HybridConfig(pp=2, dp_replicate=2, micro_batches=2)
    training = layouts.start(replace(layouts.TIED, dropout=0.0), config)
    sgd = torch.optim.SGD(training.module.parameters(), lr=0.1)
    found["stages"] = changed(training.module, sgd, lambda *_: None)
    last = on(3, lambda m, _: list(m.parameters())[-1].view(-1)[0].add_(1))
    found["a stage"] = changed(training.module, sgd, last)
    return found


@pytest.fixture(scope="module")
def found():
    def all_of_it():
        return whole_models(), on_a_schedule(), cut_models()

    return launch(all_of_it, 4)


def test_the_first_tensor_and_the_rank_that_differs_from_most(found):
    for whole, _, _ in found:
        assert whole["nothing"][0] == "", whole["nothing"]
        assert whole["nothing"][-1] == "All replicas are the same."
        assert whole["a weight"][:4] == ("2.weight", [2], [0, 1, 3], [])
        assert whole["a slot"][:3] == ("exp_avg of 0.weight", [1], [0, 2, 3])
        assert whole["a rate"][:3] == ("the optimizer's options of 0.weight", [3], [0, 1, 2])
        assert whole["no step"][:3] == ("the optimizer's slots of 0.weight", [0], [1, 2, 3])
        assert "is other on rank 2 than on ranks 0, 1 and 3" in whole["a weight"][-1]


def test_without_a_majority_nobody_is_said_to_be_right(found):
    for whole, _, _ in found:
        assert whole["two of four"][:3] == ("0.bias", [0, 1, 2, 3], [])
        assert "no majority says who is right" in whole["two of four"][-1]


def test_statistics_of_each_rank_s_own_are_compared_where_asked(found):
    for whole, _, _ in found:
        assert whole["statistics"][0] == "1.running_mean"


def test_on_a_schedule_it_says_between_which_steps(found):
    for _, scheduled, _ in found:
        step, ranks, said = scheduled
        assert (step, ranks) == (6, [2])
        assert said.startswith("after step 6, and was the same after step 3: ")
        assert "is other on rank 2 than on ranks 0, 1 and 3" in said


def test_pieces_are_compared_with_the_same_piece_alone(found):
    for _, _, cut in found:
        for healthy in ("tensor", "zero", "shards", "stages"):
            assert cut[healthy][0] == "", cut[healthy]
        assert cut["a slice"][:3] == ("token_embedding.weight", [0, 2], [])
        assert "part 0 of 2 along dim 0" in cut["a slice"][-1]
        assert cut["a shard"][0].startswith("exp_avg_sq of ") and cut["a shard"][1] == [1, 3]
        assert cut["a stage"][1] == [2, 3], cut["a stage"]


def test_every_is_a_number_of_steps():
    with pytest.raises(ValueError, match=r"every is how many steps .* got 0"):
        ReplicaWatch(build(), every=0)
