"""Ranks that were given different settings are told so, on all of them, before anything has changed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.federated import (
    Budget,
    ClientLevelFedAvg,
    Clients,
    ClientWork,
    FedAdam,
    FedAvg,
    FixedPoint,
    SampleLevelWork,
    Scaffold,
    SecureFedAvg,
    ServerSGD,
    label_skew,
)
from tests.federated.references import LR, SEED, build, federation

CLIENTS = federation()


def plain(rank=0, method=FedAvg, clients=CLIENTS, lr=LR, steps=2, batch_size=5, **options):
    work = ClientWork(options.pop("loss", F.cross_entropy), lr, steps, batch_size)
    return method(build(), clients, work, 6, options.pop("seed", SEED), **options)


def per_sample(**changed):
    options = {"rate": 0.5, "max_norm": 1.0, "noise_multiplier": 1.0, "noise_seed": 1} | changed
    return FedAvg(build(), CLIENTS, SampleLevelWork(F.cross_entropy, LR, 2, **options), 6, SEED)


def per_client(**changed):
    options = {"rate": 0.5, "max_norm": 1.0, "noise_multiplier": 1.0, "noise_seed": 1} | changed
    return ClientLevelFedAvg(build(), CLIENTS, ClientWork(F.cross_entropy, LR, 2), SEED, **options)


def other_order(rank):
    even = [10] * 11
    parts = label_skew(CLIENTS.targets, even, 0.3, seed=rank)
    return Clients(CLIENTS.inputs, CLIENTS.targets, parts)


def other_samples(rank):
    return Clients(CLIENTS.inputs + rank, CLIENTS.targets, CLIENTS.parts)


# what differs -> how a rank has it
DIFFER = {
    "work.lr": lambda r: plain(lr=LR * (1 + r)),
    "work.steps": lambda r: plain(steps=2 + r),
    "work.batch_size": lambda r: plain(batch_size=5 + r),
    "work.loss": lambda r: plain(loss=(F.cross_entropy, F.nll_loss)[r]),
    "seed": lambda r: plain(seed=SEED + r),
    "mu": lambda r: plain(mu=0.1 * r),
    "weighting": lambda r: plain(weighting=("samples", "clients")[r]),
    "server": lambda r: plain(server=ServerSGD(1.0 + r)),
    "server ": lambda r: plain(server=FedAdam(tau=1e-3 * (1 + r))),
    "compress": lambda r: plain(compress=(None, abs)[r]),
    "parts": lambda r: plain(clients=other_order(r)),
    "inputs": lambda r: plain(clients=other_samples(r)),
    "method": lambda r: plain(method=(FedAvg, Scaffold)[r]),
    "threshold": lambda r: plain(method=SecureFedAvg, threshold=4 + r),
    "encoding": lambda r: plain(method=SecureFedAvg, threshold=4, encoding=FixedPoint(8 + r)),
    "work.rate": lambda r: per_sample(rate=0.5 + 0.1 * r),
    "work.max_norm": lambda r: per_sample(max_norm=1.0 + r),
    "work.noise_multiplier": lambda r: per_sample(noise_multiplier=1.0 + r),
    "work.budget": lambda r: per_sample(budget=(None, Budget(1, 1e-3))[r]),
    "work.noise_seed": lambda r: per_sample(noise_seed=r),
    "rate": lambda r: per_client(rate=0.5 + 0.1 * r),
    "max_norm": lambda r: per_client(max_norm=1.0 + r),
    "noise_multiplier": lambda r: per_client(noise_multiplier=1.0 + r),
    "budget": lambda r: per_client(budget=(None, Budget(1, 1e-3))[r]),
    "noise_seed": lambda r: per_client(noise_seed=r),
}


def changed_between(federated, change):
    """What a round says after one rank has changed something since the start; and whether it has left all as it was."""
    federated.round()
    if dist.get_rank():
        change(federated)
    x, rounds = federated.x.clone(), federated.rounds
    with pytest.raises(ValueError) as refused:
        federated.round()
    return str(refused.value), torch.equal(x, federated.x) and rounds == federated.rounds


def all_differences():
    rank, said = dist.get_rank(), {}
    for name, build_one in DIFFER.items():
        with pytest.raises(ValueError) as refused:
            build_one(rank)
        said[name] = str(refused.value)

    def uneven(number, client):
        return 1 + dist.get_rank() * (number > 0)

    said["later"] = [
        changed_between(plain(), lambda f: setattr(f.work, "lr", 1.0)),
        changed_between(plain(), lambda f: setattr(f.server, "lr", 2.0)),
        changed_between(plain(), lambda f: setattr(f, "x", f.x + 1)),
        changed_between(plain(steps=uneven), lambda f: None),
        changed_between(per_client(), lambda f: setattr(f, "budget", Budget(1e-3, 1e-3))),
        changed_between(per_client(), lambda f: f.accountant.spend(0.5, 1.0)),
        changed_between(per_sample(), lambda f: f.work.accountants.clear()),
        changed_between(
            plain(method=SecureFedAvg, threshold=4), lambda f: f.dropouts.update({1: "share"})
        ),
    ]
    return said


def test_ranks_with_different_settings_are_told_so():
    first, second = launch(all_differences, 2, backend="ring", timeout=240)
    for name in DIFFER:
        for said in (first[name], second[name]):
            assert said.startswith(f"{name.strip()} differs between the ranks"), said
            assert "on rank 0;" in said
    later = (
        "work.lr", "server", "x", "work.steps", "budget", "spent", "work's spent", "dropouts"
    )  # fmt: skip
    for said in (first["later"], second["later"]):
        for (sentence, unchanged), name in zip(said, later, strict=True):
            assert sentence.startswith(f"{name} differs between the ranks"), sentence
            assert unchanged
