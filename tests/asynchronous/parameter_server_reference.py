"""What a parameter server computes, in one process, from the order in which it did things: written apart from it.

Plain SGD by hand, gradients by torch.autograd.grad, one copy of the parameters for each worker. Nothing of
dtcourse.asynchronous is used: `served` are tuples (what, workers) in order.
"""

from __future__ import annotations

import torch
from torch.func import functional_call

SAMPLES = 4  # a worker's batch


def batch(case, worker, step):
    """What this worker computes its gradient on, in doubles where it is no token."""
    x, y = case.batch(SAMPLES, 1000 * worker + step)
    return (x.double() if x.is_floating_point() else x), y


def gradients(case, model, parameters, worker, step):
    """By name; zeros for what the loss does not depend on."""
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    leaves = {n: parameters[n].clone().requires_grad_(n in names) for n in parameters}
    x, y = batch(case, worker, step)
    # functional_call ties weights by itself: one name for each tensor.
    loss = case.loss(functional_call(model, leaves, (x,)), y)
    found = torch.autograd.grad(loss, [leaves[n] for n in names], allow_unused=True)
    return {
        n: torch.zeros_like(leaves[n]) if g is None else g
        for n, g in zip(names, found, strict=True)
    }


def replay(served, case, workers, rate, weight, lr_factor=lambda staleness: 1.0):
    """Parameters by name, and the staleness of each applied gradient, after all that was `served`.

    weight: number of gradients in an update -> what each counts
    """
    model = case.build(0).double()
    current = {n: p.detach().clone() for n, p in model.named_parameters()}
    has = {w: {n: p.clone() for n, p in current.items()} for w in workers}
    since = dict.fromkeys(workers, 0)  # updates since its last pull
    step = dict.fromkeys(workers, 0)
    staleness = []
    for what, who in served:
        if what == "pull":
            (w,) = who
            has[w], since[w] = {n: p.clone() for n, p in current.items()}, 0
            continue
        sums = None
        for w in who:
            g = gradients(case, model, has[w], w, step[w])
            sums = g if sums is None else {n: sums[n] + g[n] for n in g}
            step[w] += 1
        if what == "drop":
            continue
        staleness += [since[w] for w in who]
        factor = lr_factor(since[who[0]])
        for n, g in sums.items():
            current[n].add_(g * weight(len(who)), alpha=-rate * factor)
        since = {w: count + 1 for w, count in since.items()}
    return current, staleness


def whole_batch_training(case, workers, steps, make_optimizer):
    """One process, every worker's batch at once, any of torch.optim."""
    model = case.build(0).double()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        for worker in workers:
            x, y = batch(case, worker, step)
            (case.loss(model(x), y) / len(workers)).backward()
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        optimizer.step()
    return {n: p.detach() for n, p in model.named_parameters()}
