"""Answers to lars_step: see test_exercises.py."""

_LARS = """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        rate = 1.0
        if {adapts}:
            if {finite}:
                rate = (trust * w.norm() / {below}).item()
            g = g + decay * w
        {update}
"""

_LARS_RIGHT = {
    "adapts": "w.dim() > 1",
    "finite": "w.norm() > 0 and g.norm() > 0",
    "below": "(g.norm() + decay * w.norm())",
    "update": "v.mul_(momentum).add_(g, alpha=lr * rate); w.sub_(v)",
}

MUTANTS = [
    (
        "plain SGD",
        "this layer's, or that of all layers",
        _LARS.format(**_LARS_RIGHT | {"adapts": "False"}),
    ),
    (
        "one ratio for all layers",
        "this layer's, or that of all layers",
        """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    norm = lambda tensors: math.sqrt(sum(t.square().sum().item() for t in tensors))
    rate = trust * norm(weights) / (norm(gradients) + decay * norm(weights))
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        v.mul_(momentum).add_(g + decay * w, alpha=lr * rate)
        w.sub_(v)
""",
    ),
    (
        "no decay in the ratio",
        "where does the decay appear",
        _LARS.format(**_LARS_RIGHT | {"below": "g.norm()"}),
    ),
    (
        "the rate outside of the velocity",
        "the gradient times the rate of that step",
        _LARS.format(
            **_LARS_RIGHT | {"update": "v.mul_(momentum).add_(g, alpha=rate); w.sub_(lr * v)"}
        ),
    ),
    (
        "a new velocity each time",
        "kept from step to step",
        _LARS.format(**_LARS_RIGHT | {"update": "v = momentum * v + lr * rate * g; w.sub_(v)"}),
    ),
    ("adapts biases", "It has one dimension", _LARS.format(**_LARS_RIGHT | {"adapts": "True"})),
    (
        "a layer at zero stays there",
        "It starts at zero",
        _LARS.format(**_LARS_RIGHT | {"finite": "g.norm() > 0"}),
    ),
    (
        "divides by zero",
        "first gradient is zero",
        _LARS.format(**_LARS_RIGHT | {"finite": "w.norm() > 0", "below": "g.norm()"}).replace(
            "trust * w.norm() / g.norm()",
            "trust * w.norm() / (g.norm() + (decay * w.norm() if g.norm() > 0 else 0))",
        ),
    ),
]

NOTHING = [
    (
        "takes no step",
        """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    pass
""",
    ),
]

ACCEPTED = [
    (
        "norms of Frobenius, nothing asked of an item",
        """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    for w, g, v in zip(weights, gradients, velocities):
        if w.ndim == 1:
            v.copy_(momentum * v + lr * g)
        else:
            length, slope = torch.linalg.vector_norm(w), torch.linalg.vector_norm(g)
            rate = trust * length / (slope + decay * length)
            rate = torch.where((length > 0) & (slope > 0), rate, torch.ones_like(rate))
            v.copy_(momentum * v + lr * rate * (g + decay * w))
        w -= v
""",
    ),
    (
        "all layers at once, by torch's foreach",
        """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    rates, sums = [], []
    for w, g in zip(weights, gradients):
        adapts = w.dim() > 1
        length, slope = w.pow(2).sum().sqrt().item(), g.pow(2).sum().sqrt().item()
        rates.append(lr * (trust * length / (slope + decay * length) if adapts and length and slope else 1))
        sums.append(g + decay * w if adapts else g)
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, torch._foreach_mul(sums, rates))
    torch._foreach_sub_(weights, velocities)
""",
    ),
]
