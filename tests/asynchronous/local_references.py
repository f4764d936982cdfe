"""The papers' algorithms of local updates on p replicas in one process: vectors, their own formulas, no optimizer of
torch's.

Each returns the replicas' parameters after every step: a list of (p, n) in double. And the same training on ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dtcourse.verify import CASES

SAMPLES = 24


def batch(name, step, rank, size):
    """A rank's part of a step's batch."""
    inputs, targets = (t.chunk(size)[rank] for t in CASES[name].batch(SAMPLES, step))
    return inputs.double() if inputs.is_floating_point() else inputs, targets


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


class Problem:
    """A case as a function of a vector: gradient(x, rank, step)."""

    def __init__(self, name, size):
        self.name, self.size = name, size
        self.model = CASES[name].build(0).double()

    def start(self):
        return parameters_to_vector(trained(self.model)).detach().clone()

    def gradient(self, x, rank, step):
        with torch.no_grad():
            vector_to_parameters(x.clone(), trained(self.model))
        inputs, targets = batch(self.name, step, rank, self.size)
        parameters = trained(self.model)
        loss = CASES[self.name].loss(self.model(inputs), targets)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat([
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for g, p in zip(found, parameters, strict=True)
        ])  # fmt: skip

    def gradients(self, X, step):
        return torch.stack([self.gradient(X[r], r, step) for r in range(self.size)])

    def replicas(self):
        return self.start().repeat(self.size, 1)


def everyone(X):
    """The mean, for each of them."""
    return X.mean(0, keepdim=True).expand_as(X).clone()


def local_sgd(problem, steps, lr, period, momentum=0.0, synchronous=0, average_momentum=False):
    """Stich's; with `synchronous` steps first, Lin et al.'s post-local SGD."""
    X, history = problem.replicas(), []
    M = torch.zeros_like(X)
    for t in range(steps):
        G = problem.gradients(X, t)
        if t < synchronous:
            G = everyone(G)
        M = momentum * M + G
        X = X - lr * M
        if t >= synchronous and (t + 1 - synchronous) % period == 0:
            X = everyone(X)
            M = everyone(M) if average_momentum else M
        history.append(X)
    return history


def easgd(problem, steps, lr, period, beta):
    """Zhang et al., equations 5 and 6. Returns the centers too."""
    X, center, history = problem.replicas(), problem.start(), []
    for t in range(steps):
        G = problem.gradients(X, t)
        step = -lr * G
        if t and t % period == 0:
            step = step - beta / problem.size * (X - center)
            center = (1 - beta) * center + beta * X.mean(0)
        X = X + step
        history.append(X)
    return history, center


def eamsgd(problem, steps, lr, period, beta, momentum):
    """Equation 8: the gradient at x + momentum v. Returns those points, and the center."""
    X, center, history = problem.replicas(), problem.start(), []
    V = torch.zeros_like(X)
    for t in range(steps):
        V_next = momentum * V - lr * problem.gradients(X + momentum * V, t)
        pull = torch.zeros_like(X)
        if t and t % period == 0:
            pull = beta / problem.size * (X - center)
            center = (1 - beta) * center + beta * X.mean(0)
        X, V = X + V_next - pull, V_next
        history.append(X + momentum * V)
    return history, center


def d_psgd(problem, steps, lr, matrices, overlap=True):
    """Lian et al., algorithm 1; without overlap, the mean of what the steps have led to."""
    X, history = problem.replicas(), []
    for t in range(steps):
        W, G = matrices[t % len(matrices)], problem.gradients(X, t)
        X = W @ X - lr * G if overlap else W @ (X - lr * G)
        history.append(X)
    return history


def diloco(problem, steps, period, inner, outer):
    """Douillard et al., algorithm 1. inner: (lr, beta1, beta2, eps, decay); outer: (lr, momentum)."""
    lr, b1, b2, eps, decay = inner
    outer_lr, momentum = outer
    X, x, velocity, history = problem.replicas(), problem.start(), 0.0, []
    M, V = torch.zeros_like(X), torch.zeros_like(X)
    for t in range(steps):
        G = problem.gradients(X, t)
        M, V = b1 * M + (1 - b1) * G, b2 * V + (1 - b2) * G * G
        m, v = M / (1 - b1 ** (t + 1)), V / (1 - b2 ** (t + 1))
        X = X - lr * decay * X - lr * m / (v.sqrt() + eps)
        if (t + 1) % period == 0:
            delta = x - X.mean(0)
            velocity = momentum * velocity + delta
            x = x - outer_lr * (delta + momentum * velocity)
            X = x.repeat(problem.size, 1)
        history.append(X)
    return history


# --- on ranks ----------------------------------------------------------------------------------------------------


def build(name):
    """Another model on each rank, rank 0's is the one that must count; and another random state."""
    rank = dist.get_rank()
    torch.manual_seed(1000 + rank)
    return CASES[name].build(0 if rank == 0 else 1000 + rank).double()


def train(name, model, optimizer, steps, first=0, forward=None):
    """This rank's parameters after each step, as vectors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    history = []
    for step in range(first, first + steps):
        inputs, targets = batch(name, step, rank, size)
        optimizer.zero_grad()
        CASES[name].loss((forward or model)(inputs), targets).backward()
        optimizer.step()
        history.append(parameters_to_vector(trained(model)).detach().clone())
    return history


def require_same(got, expected, what, tolerance=1e-12):
    """got: by rank, histories; expected: (p, n) after each step."""
    for rank, history in enumerate(got):
        assert len(history) == len(expected)
        for step, (mine, right) in enumerate(zip(history, expected, strict=True)):
            error = float((mine - right[rank]).abs().max() / right.abs().max())
            assert error <= tolerance, f"{what}, rank {rank}, step {step}: off by {error:.1e}"
