"""Answers to sharded_lars: see test_exercises.py."""

_REDUCE = "    dist.all_reduce(squares)\n"
_OWN = "w.square().sum(), g.square().sum()"
_MATRIX = "        if w.dim() > 1:\n"
_FINITE = "if length > 0 and slope > 0:"
_SHARE = "share = trust * length / (slope + decay * length)"
_UPDATE = "        v.mul_(momentum).add_(g, alpha=lr * share)\n        w.sub_(v)\n"

MUTANTS = [
    ("each rank by its own rows", "Whose rows are missing", ((_REDUCE, ""),)),
    ("plain SGD", "this layer's, or that of all layers", ((_MATRIX, "        if False:\n"),)),
    (
        "norms are added up, not squares",
        "or their squares",
        ((_OWN, "w.norm(), g.norm()"), (".sqrt().tolist()", ".tolist()")),
    ),
    (
        "a mean of the squares",
        "where does the decay appear",
        (
            (_REDUCE, _REDUCE + "    squares /= dist.get_world_size()\n"),
            (_SHARE, "share = trust * length / (slope + decay)"),
        ),
    ),
    (
        "one ratio for all layers",
        "that of all layers",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    squares = torch.stack([sum(t.square().sum() for t in ts) for ts in (weights, gradients)])
    dist.all_reduce(squares)
    length, slope = squares.sqrt().tolist()
    for w, g, v in zip(weights, gradients, velocities):
        v.mul_(momentum).add_(g + decay * w, alpha=lr * trust * length / (slope + decay * length))
        w.sub_(v)
""",
    ),
    (
        "the lesson's own step",
        "Whose rows are missing",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        share = 1.0
        if w.dim() > 1:
            share = trust * w.norm() / (g.norm() + decay * w.norm())
            g = g + decay * w
        v.mul_(momentum).add_(g, alpha=float(lr * share))
        w.sub_(v)
""",
    ),
    (
        "no decay in the ratio",
        "where does the decay appear",
        ((_SHARE, "share = trust * length / slope"),),
    ),
    (
        "the learning rate outside of the velocity",
        "the gradient times the lr of that step",
        (
            (
                _UPDATE,
                "        v.mul_(momentum).add_(g, alpha=share)\n        w.sub_(lr * v)\n",
            ),
        ),
    ),
    (
        "a new velocity each time",
        "kept from step to step",
        ((_UPDATE, "        v = momentum * v + lr * share * g\n        w.sub_(v)\n"),),
    ),
    ("adapts biases", "It has one dimension", ((_MATRIX, "        if True:\n"),)),
    ("a layer at zero stays there", "It starts at zero", ((_FINITE, "if slope > 0:"),)),
    (
        "a share of zero where the gradient is zero",
        "first gradient is zero",
        ((_FINITE, "if not slope:\n                share = 0.0\n            elif length > 0:"),),
    ),
    (
        "a rank without rows stays away",
        "waiting",
        ((_REDUCE, "    if all(len(w) for w in weights):\n        dist.all_reduce(squares)\n"),),
    ),
    (
        "a message per layer",
        "travel together",
        ((_REDUCE, "    for pair in squares:\n        dist.all_reduce(pair)\n"),),
    ),
    (
        "a square per row",
        "What do the others need to know",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    squares = torch.zeros(len(weights), 2, 8, dtype=torch.double)
    for i, pair in enumerate(zip(weights, gradients)):
        for k, t in enumerate(pair):
            squares[i, k, : len(t)] = t.square().flatten(1).sum(1) if t.dim() > 1 else t.square()
    dist.all_reduce(squares)
    for w, g, v, (length, slope) in zip(weights, gradients, velocities, squares.sum(2).sqrt().tolist()):
        share = 1.0
        if w.dim() > 1:
            if length and slope:
                share = trust * length / (slope + decay * length)
            g = g + decay * w
        v.mul_(momentum).add_(g, alpha=lr * share)
        w.sub_(v)
""",
    ),
]

NOTHING = [
    (
        "takes no step",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    pass
""",
    ),
]

ACCEPTED = [
    (
        "all lengths first, then all slopes",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    norms = torch.cat([torch.stack([t.pow(2).sum() for t in ts]) for ts in (weights, gradients)])
    dist.all_reduce(norms)
    lengths, slopes = norms.sqrt().chunk(2)
    shares = torch.where(
        (lengths > 0) & (slopes > 0), trust * lengths / (slopes + decay * lengths), torch.ones_like(lengths)
    )
    for w, g, v, share in zip(weights, gradients, velocities, shares):
        v *= momentum
        v += lr * g if w.ndim == 1 else lr * share * (g + decay * w)
        w -= v
""",
    ),
    (
        "every rank's squares gathered, and torch's foreach",
        """
def sharded_lars(weights, gradients, velocities, lr, trust, momentum, decay):
    own = torch.stack([torch.stack([torch.linalg.vector_norm(t) ** 2 for t in ts]) for ts in (weights, gradients)])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    rates, sums = [], []
    for w, g, (length, slope) in zip(weights, gradients, sum(every).sqrt().T.tolist()):
        adapts = w.dim() > 1
        rates.append(lr * (trust * length / (slope + decay * length) if adapts and length and slope else 1))
        sums.append(g + decay * w if adapts else g)
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, torch._foreach_mul(sums, rates))
    torch._foreach_sub_(weights, velocities)
""",
    ),
]
