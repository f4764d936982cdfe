"""The papers' algorithms in one process, written apart from the package: torch's optimizers on copies of a model."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dtcourse.data import digits
from dtcourse.federated import Clients, label_skew, quantity_skew
from dtcourse.federated.clients import generator
from dtcourse.models import MLP

LR, SEED = 0.2, 3


def build():
    return MLP((64, 6, 10), seed=1).double()


def federation(num_clients=11, samples=150):
    """Skewed both ways. 11 clients: neither 2 nor 4 ranks divide them."""
    pool = digits("train", flat=True)
    x, y = pool.images[:samples].double(), pool.labels[:samples]
    sizes = quantity_skew(samples, num_clients, alpha=1.0, seed=4)
    return Clients(x, y, label_skew(y, sizes, alpha=0.3, seed=0))


def flat(model):
    return parameters_to_vector(model.parameters()).detach()


def centralised(clients, steps, lr=LR):
    """SGD on all samples."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(clients.inputs), clients.targets).backward()
        optimizer.step()
    return flat(model)


def from_start(model, x, data, batches, mu=0.0, extra=None):
    """Steps of torch's SGD from x on the loss + mu/2 |w - x|^2 + <extra, w>."""
    local = copy.deepcopy(model)
    vector_to_parameters(x.clone(), local.parameters())
    optimizer = torch.optim.SGD(local.parameters(), lr=LR)
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(local(data[0][batch]), data[1][batch])
        w = parameters_to_vector(local.parameters())
        loss = loss + mu / 2 * (w - x).square().sum()
        if extra is not None:
            loss = loss + extra @ w
        loss.backward()
        optimizer.step()
    return flat(local)


def federated(
    clients, work, rounds, num_sampled, *, mu=0.0, scaffold=False, adam=None, equal=False
):
    """x after so many rounds, as the papers' pseudo-code has it. adam: (lr, b1, b2, tau)"""
    model, x = build(), flat(build())
    m, v = torch.zeros_like(x), torch.full_like(x, adam[3] ** 2 if adam else 0)
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(len(clients))]
    for number in range(rounds):
        cohort = [k for k in clients.drawn(num_sampled, SEED, number) if clients.sizes[k]]
        weights = [1 if equal else clients.sizes[k] for k in cohort]
        ends, new = [], list(own)
        for k in cohort:
            steps, draw = work.steps_of(number, k), generator(SEED, "work", number, k)
            batches = list(work.batches(clients.sizes[k], steps, draw))
            ends.append(
                from_start(model, x, clients.of(k), batches, mu, c - own[k] if scaffold else None)
            )
            new[k] = own[k] - c + (x - ends[-1]) / (steps * LR)
        mean = sum(w * y for w, y in zip(weights, ends, strict=True)) / sum(weights)
        if scaffold:
            everyone = [1 if equal else n for n in clients.sizes]
            own = new
            c = sum(w * one for w, one in zip(everyone, own, strict=True)) / sum(everyone)
        if adam:
            lr, b1, b2, tau = adam
            delta = mean - x
            m, v = b1 * m + (1 - b1) * delta, b2 * v + (1 - b2) * delta**2
            mean = x + lr * m / (v**0.5 + tau)
        x = mean
    return x


def rounded_sum(vectors, among, encoding):
    """The sum of some clients' vectors in whole numbers, as Python has them: what secure aggregation gives."""
    scale, n = 2**encoding.fraction_bits, len(next(iter(vectors.values())))
    return [sum(round(float(vectors[k][i]) * scale) for k in among) / scale for i in range(n)]


def shortened(row, max_norm):
    """Clipped as nn.utils.clip_grad_norm_ does it, which adds 1e-6 to the norm; so by hand."""
    return row if row.norm() <= max_norm else row / row.norm() * max_norm


def private_clients(clients, rounds, q, max_norm, z, noise_seed, steps=2):
    """DP-FedAvg, algorithm 1 of McMahan et al., client by client."""
    model, x = build(), flat(build())
    for number in range(rounds):
        coins = torch.rand(
            len(clients), generator=generator(SEED, "clients", number), dtype=torch.float64
        )
        total = torch.zeros_like(x)
        for k in (k for k in range(len(clients)) if coins[k] < q and clients.sizes[k]):
            batches = [torch.arange(clients.sizes[k])] * steps
            total += shortened(from_start(model, x, clients.of(k), batches) - x, max_norm)
        draw = generator(noise_seed, "noise", number)
        total += torch.randn(len(x), generator=draw, dtype=torch.float64) * z * max_norm
        x = x + total / (q * len(clients))
    return x


def private_samples(clients, rounds, q, max_norm, z, noise_seed, steps=2):
    """FedAvg of clients that take steps of DP-SGD, algorithm 1 of Abadi et al., sample by sample."""
    model, x = build(), flat(build())
    for number in range(rounds):
        mean = torch.zeros_like(x)
        for k in (k for k in range(len(clients)) if clients.sizes[k]):
            inputs, targets = clients.of(k)
            own = generator(SEED, "work", number, k)
            draw, y = generator(noise_seed, "private", own.initial_seed()), x
            for _ in range(steps):
                vector_to_parameters(y.clone(), model.parameters())
                coins = torch.rand(len(inputs), generator=draw, dtype=torch.float64)
                total = torch.zeros_like(x)
                for i in (i for i in range(len(inputs)) if coins[i] < q):
                    loss = F.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1])
                    row = torch.cat(
                        [g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])]
                    )
                    total += shortened(row, max_norm)
                total += torch.randn(len(x), generator=draw, dtype=torch.float64) * z * max_norm
                y = y - LR * total / (q * len(inputs))
            mean += clients.sizes[k] * y / sum(clients.sizes)
        x = mean
    return x
