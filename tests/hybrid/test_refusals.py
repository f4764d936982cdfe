"""What does not fit together is refused before anything is changed, with the whole equation that failed."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.config import AXES
from dtcourse.models import Transformer
from dtcourse.pipeline_parallel import interleaved_1f1b, zb_v
from tests.hybrid.layouts import GROUPED, MIXTURE, TIED

MANY_HEADS = replace(TIED, d_model=24, n_heads=12, n_kv_heads=6)
THREE_KV_HEADS = replace(TIED, d_model=24, n_heads=12, n_kv_heads=3)
ONE_KV_HEAD = replace(TIED, n_kv_heads=1)
OTHER_ORDER = ("tp", "pp", "dp_replicate", "dp_shard", "cp")


def said(call, *args, **kwargs):
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tp": 0}, "tp is at least 1; got 0"),
        ({"micro_batches": 0}, "micro_batches is at least 1; got 0"),
        ({"axes": ("pp", "dp_replicate", "dp_shard", "tp", "tp")},
         "axes has each of pp, dp_replicate, dp_shard, cp, tp once; got pp, dp_replicate, dp_shard, tp, tp: "
         "twice tp; missing cp; unknown none"),
        ({"axes": (*AXES, "ep")}, "twice none; missing none; unknown ep"),
        ({"axes": AXES[1:]}, "missing pp"),
        ({"axes": ()}, "got none"),
        ({"axes": [0, *AXES[1:]]}, "missing pp; unknown 0"),
        ({"axes": [["pp"], *AXES[1:]]}, "missing pp; unknown ['pp']"),
        ({"seed": "0"}, "seed is a whole number; got '0'"),
        ({"dp_shard": 2, "cp": 3, "ep": 4}, "dp_shard(2) x cp(3) = 6 is no multiple of ep(4)"),
        ({"dp_replicate": 4, "ep": 2}, "dp_shard(1) x cp(1) = 1 is no multiple of ep(2)"),
        ({"context": "rings"}, "context is 'ring' or 'ulysses'; got 'rings'"),
        ({"tp": "2"}, "tp is a whole number; got '2'"),
        ({"tp": 2.0}, "tp is a whole number; got 2.0"),
        ({"tp": None}, "tp is a whole number; got None"),
        ({"tp": True}, "tp is a whole number; got True"),
        ({"micro_batches": 2.5}, "micro_batches is a whole number; got 2.5"),
        ({"layers": (2.0, 2.0)}, "each of layers is a whole number; got 2.0"),
        ({"layers": 4}, "layers is a tuple or a list; got 4"),
        ({"axes": "tp"}, "axes is a tuple or a list; got 'tp'"),
        ({"sequence": "ring"}, "sequence is True or False; got 'ring'"),
        ({"schedule": "1F1B"}, "schedule is a function of pp and micro_batches"),
    ],
)  # fmt: skip
def test_degrees_and_axes(given, sentence):
    assert sentence in said(HybridConfig, **given)


@pytest.mark.parametrize(
    ("given", "model", "sentence"),
    [
        ({"pp": 5}, TIED, "an embedding, 2 blocks and a head are 4 layers, and pp(5) with 1F1B has 5 stages"),
        ({"pp": 3, "schedule": lambda p, m: interleaved_1f1b(p, m, 2), "micro_batches": 3}, TIED, "has 6 stages"),
        ({"pp": 2, "layers": (1, 1, 2)}, TIED, "got 1 + 1 + 2 = 4"),
        ({"pp": 2, "layers": (2, 3)}, TIED, "got 2 + 3 = 5"),
        ({"pp": 2, "layers": (0, 4)}, TIED, "at least one; got 0 + 4 = 4"),
        ({"tp": 8}, TIED, "tp(8): the attention heads of blocks.0.attention, 4, cannot be cut over 8 ranks"),
        ({"tp": 4}, replace(TIED, d_ff=6), "tp(4): the outputs of blocks.0.mlp.up, 6, cannot be cut over 4 ranks"),
        ({"tp": 4}, MANY_HEADS, "tp(4): blocks.0.attention has 6 key-value heads, which cannot be given out to"),
        ({"dp_shard": 3, "ep": 3}, MIXTURE, "4 experts do not divide by ep(3)"),
        ({"dp_shard": 2, "ep": 2}, TIED, "ep(2) gives out experts, and the model has none"),
        ({"tp": 2, "cp": 4, "context": "ulysses"}, GROUPED, "4 heads do not divide by tp(2) x cp(4) = 8"),
        ({"cp": 2, "context": "ulysses"}, THREE_KV_HEADS,
         "cp(2), with what tp(1) leaves on a rank: 12 query heads and 3 key-value heads cannot be given out to 2"),
        ({"tp": 2, "dp_shard": 2}, ONE_KV_HEAD, "several ranks hold the same one of 1 key-value head"),
        ({"dp_shard": 4, "schedule": lambda p, m: interleaved_1f1b(p, m, 2)}, TIED,
         "puts the first and the last of 2 stages on one rank"),
        ({"dp_shard": 2, "pp": 2, "micro_batches": 4, "schedule": zb_v}, TIED, "of 4 stages on one rank"),
        ({"tp": 2, "sequence": True}, MIXTURE, "sequence=True is for blocks with one MLP, and these have 4 experts"),
        ({"cp": 2, "sequence": True}, TIED, "sequence=True cuts tokens over the tp ranks, and tp is 1"),
    ],
)  # fmt: skip
def test_the_models_sizes(given, model, sentence):
    with torch.device("meta"):
        built = Transformer(model)
    assert sentence in said(HybridConfig(**given).check_model, built)


@pytest.mark.parametrize(
    ("given", "shape", "sentence"),
    [
        ({"micro_batches": 4}, (3, 8), "3 samples cannot make micro_batches(4)"),
        ({"cp": 3}, (4, 9), "9 tokens does not divide by cp(3) x 2 chunks per rank (zigzag) = 6"),
        ({"cp": 3, "context": "ulysses"}, (4, 8), "8 tokens does not divide by cp(3) = 3"),
        ({"tp": 4, "sequence": True}, (4, 6), "6 tokens does not divide by tp(4) of sequence=True = 4"),
        ({"cp": 2, "tp": 2, "sequence": True}, (4, 12),
         "12 tokens does not divide by cp(2) x 2 chunks per rank (zigzag) x tp(2) of sequence=True = 8"),
    ],
)  # fmt: skip
def test_a_batch(given, shape, sentence):
    assert sentence in said(HybridConfig(**given).check_batch, *shape)


@pytest.mark.parametrize("kind", ["Sequential", "Linear", "wrapped"])
def test_another_kind_of_model(kind):
    model = {
        "Sequential": torch.nn.Sequential(torch.nn.Linear(2, 2)),
        "Linear": torch.nn.Linear(2, 2),
        "wrapped": torch.nn.DataParallel(Transformer(TIED)),
    }[kind]
    parts = f"Transformer (an embedding, blocks, a head, and their config); got {kind}"
    sentence = "pass model.module" if kind == "wrapped" else parts
    assert sentence in said(HybridConfig().check_model, model)


def test_a_schedule_of_ones_own_makes_one():
    config = HybridConfig(pp=2, schedule=lambda ranks, m: None)
    said_of_it = "schedule(2, 1) makes a pipeline_parallel.Schedule; got None"
    assert said_of_it in said(config.check_model, Transformer(TIED))


def test_axes_and_numbers_as_a_file_or_numpy_has_them():
    cut = HybridConfig(axes=list(OTHER_ORDER), tp=np.int64(2), layers=[2, np.int64(2)])
    assert (cut.axes, cut.tp, cut.layers) == (OTHER_ORDER, 2, (2, 2))
    assert (type(cut.tp), type(cut.layers[1])) == (int, int)


def with_axes_as_a_list():
    cut = HybridConfig(tp=2, axes=list(AXES))
    cut.check_mesh(init_device_mesh("cpu", (1, 1, 1, 1, 2), mesh_dim_names=AXES))
    return cut.mesh("cpu").mesh_dim_names


def test_axes_given_as_a_list_fit_the_same_mesh():
    assert list(launch(with_axes_as_a_list, 2)) == [AXES] * 2


def test_what_divides_is_taken():
    with torch.device("meta"):
        HybridConfig(pp=4, tp=2, cp=2, dp_shard=2, ep=4).check_model(Transformer(MIXTURE))
    HybridConfig(cp=2, tp=2, sequence=True).check_batch(1, 8)
    HybridConfig(cp=3, context="ulysses").check_batch(1, 9)


def of_two_ranks():
    """What two ranks are told: of the product, and of meshes that are not the config's. The model stays as it was."""
    cut = HybridConfig(dp_shard=2, tp=1)
    model = Transformer(TIED)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    meshes = {
        "order": init_device_mesh("cpu", (1, 1, 1, 2, 1), mesh_dim_names=OTHER_ORDER),
        "size": init_device_mesh("cpu", (1, 1, 1, 1, 2), mesh_dim_names=AXES),
        "axes": init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",)),
        "no names": init_device_mesh("cpu", (2,)),
    }
    heard = {kind: said(parallelize, model, mesh, cut) for kind, mesh in meshes.items()}
    heard["swapped"] = said(parallelize, model, cut, meshes["size"])
    heard["product"] = said(HybridConfig(dp_shard=2, tp=3).mesh, "cpu")
    heard["model"] = said(
        parallelize, model, HybridConfig(tp=2).mesh("cpu"), HybridConfig(tp=2, layers=(1, 1))
    )
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert [*model.state_dict()] == [*before]
    return heard


def test_meshes_that_are_not_the_configs():
    for heard in launch(of_two_ranks, 2):
        ours = "pp(1) x dp_replicate(1) x dp_shard(2) x cp(1) x tp(1) = 2"
        theirs = "the mesh is tp(1) x pp(1) x dp_replicate(1) x dp_shard(2) x cp(1)"
        assert heard["order"] == f"{ours}, and {theirs}, in another order"
        assert heard["size"].endswith("dp_shard(1) x cp(1) x tp(2) = 2")
        assert heard["size"].startswith(ours)
        assert heard["axes"] == f"{ours}, and the mesh is dp_shard(2), with other axes"
        assert re.search(r"the mesh is \(2,\), axes without names", heard["no names"]), heard[
            "no names"
        ]
        assert heard["swapped"].endswith("got a model, HybridConfig, DeviceMesh")
        product = "pp(1) x dp_replicate(1) x dp_shard(2) x cp(1) x tp(3) = 6, and there are 2 ranks"
        assert heard["product"] == product
        assert "layers says how many each of 1 stage has of 4" in heard["model"]


def what_a_step_is_told():
    """On two ranks: what is no function to scale by, no number to clip at, and tokens on no device of the model's."""
    training = parallelize(Transformer(TIED), HybridConfig(tp=2).mesh("cpu"), HybridConfig(tp=2))
    batch = torch.zeros(2, 8, dtype=torch.long)
    heard = {
        "scale": said(training.step, batch, batch, 2.0),
        "meta": said(training.step, batch.to("meta"), batch.to("meta")),
    }
    training.step(batch, batch)
    before = [p.grad.clone() for p in training.module.parameters()]
    for wrong in ("1", None, 0.0, math.nan, True, [1.0]):
        heard[f"max_norm={wrong}"] = said(training.clip_grad_norm, wrong)
    heard["norm_type"] = said(training.clip_grad_norm, 1.0, "2")
    assert all(p.grad.equal(g) for p, g in zip(training.module.parameters(), before, strict=True))
    assert math.isfinite(training.clip_grad_norm(1, 2))  # and it goes on
    return heard


def test_what_a_step_and_its_clipping_are_given():
    for heard in launch(what_a_step_is_told, 2):
        assert heard.pop("scale") == "scale is a function, such as a loss scaler's .scale; got 2.0"
        assert (
            heard.pop("meta")
            == "tokens and targets are on one device, with values; got meta and meta"
        )
        assert heard.pop("norm_type") == "norm_type is a number above 0, or inf; got '2'"
        for name, sentence in heard.items():
            wrong = name.partition("=")[2]
            assert sentence.replace("'", "") == f"max_norm is a number above 0; got {wrong}"
