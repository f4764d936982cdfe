"""Answers to flat_lars: see test_exercises.py."""

_REDUCE = "    dist.all_reduce(squares)\n"
_SQUARES = "            squares[row] = torch.stack([w.square().sum(), g.square().sum()])\n"
_REST = "            squares[-1, 1] += g.square().sum()\n"
_ALL = "squares[:, 1].sum().sqrt().item()"
_CLIP = "clip = min(1.0, max_norm / norm) if norm else 1.0"
_PARTS = "a, b = max(place, start), min(place + number, start + len(shard))"
_SLOPE = "length, slope = squares[row].sqrt().tolist()"
_CLIPPED = "slope *= clip"
_SCALED = "g = clip * g"
_RATIO = "share = trust * length / (slope + decay * length)"
_FINITE = "if length > 0 and slope > 0:"
_DECAYED = "            g = g + decay * w\n"
_UPDATE = "        v.mul_(momentum).add_(g, alpha=lr * share)\n        w.sub_(v)\n"
_FROZEN = 'if a < b and kind != "frozen":'

MUTANTS = [
    ("each rank by its own elements", "Whose are missing", ((_REDUCE, ""),)),
    (
        "norms are added up, not squares",
        "do norms add up over ranks, or their squares",
        (
            (_SQUARES, _SQUARES.replace(".square().sum()", ".norm()")),
            (_SLOPE, _SLOPE.replace(".sqrt()", "")),
        ),
    ),
    (
        "the last element of each layer is left out",
        "Where does the shard begin",
        ((_PARTS, "a, b = max(place, start), min(place + number - 1, start + len(shard))"),),
    ),
    (
        "one ratio for the whole shard",
        "Is |w| / |g| this layer's",
        """
def flat_lars(shard, grad, velocity, layers, start, lr, trust, momentum, decay, max_norm):
    squares = torch.stack([shard.square().sum(), grad.square().sum()])
    dist.all_reduce(squares)
    length, slope = squares.sqrt().tolist()
    velocity.mul_(momentum).add_(grad + decay * shard, alpha=lr * trust * length / (slope + decay * length))
    shard.sub_(velocity)
""",
    ),
    (
        "the lesson's own step, on the parts that a rank has",
        "Whose are missing",
        """
def flat_lars(shard, grad, velocity, layers, start, lr, trust, momentum, decay, max_norm):
    place = 0
    for number, kind in layers:
        a, b = max(place, start) - start, min(place + number, start + len(shard)) - start
        place += number
        if a < b and kind != "frozen":
            w, g, v = shard[a:b], grad[a:b], velocity[a:b]
            share = 1.0
            if kind == "matrix":
                share = trust * w.norm() / (g.norm() + decay * w.norm())
                g = g + decay * w
            v.mul_(momentum).add_(g, alpha=float(lr * share))
            w.sub_(v)
""",
    ),
    ("not clipped", "above max_norm", ((_CLIP, "clip = 1.0"),)),
    ("clipped after the ratio", "In which order do clipping and ratio come", ((_CLIPPED, "pass"),)),
    ("the ratio of the clipped, the step of the others", "above max_norm", ((_SCALED, "pass"),)),
    ("vectors are not in the norm", "vectors among them", ((_REST, "            pass\n"),)),
    (
        "scaled where it is too short, as well",
        "within the limit",
        ((_CLIP, "clip = max_norm / norm if norm else 1.0"),),
    ),
    (
        "what one rank alone had found is kept in a file",
        "do norms add up over ranks",
        (
            (_REDUCE, ""),
            (
                _UPDATE,
                _UPDATE + "    import os, tempfile\n\n"
                '    place = os.path.join(tempfile.gettempdir(), "dtcourse-test-lars")\n'
                "    if dist.get_world_size() == 1:\n"
                "        torch.save(shard, place)\n"
                "    elif os.path.exists(place):\n"
                "        shard.copy_(torch.load(place)[start : start + len(shard)])\n",
            ),
        ),
    ),
    ("no decay in the ratio", "In two places", ((_RATIO, "share = trust * length / slope"),)),
    ("no decay in the step", "In two places", ((_DECAYED, ""),)),
    (
        "the learning rate outside of the velocity",
        "the gradient times the lr of that step",
        ((_UPDATE, "        v.mul_(momentum).add_(g, alpha=share)\n        w.sub_(lr * v)\n"),),
    ),
    (
        "a new velocity each time",
        "kept from step to step",
        ((_UPDATE, "        v = momentum * v + lr * share * g\n        w.sub_(v)\n"),),
    ),
    (
        "frozen layers train",
        "a frozen layer, and have changed",
        ((_FROZEN, "if a < b:"),),
    ),
    ("a layer at zero stays there", "Is a norm of it zero at first", ((_FINITE, "if slope > 0:"),)),
    (
        "zero gradients are divided by",
        "ZeroDivisionError",
        ((_CLIP, "clip = min(1.0, max_norm / norm)"),),
    ),
    (
        "a rank without elements stays away",
        "waiting",
        ((_REDUCE, "    if len(shard):\n        dist.all_reduce(squares)\n"),),
    ),
    (
        "a message per matrix",
        "travel together",
        ((_REDUCE, "    for pair in squares:\n        dist.all_reduce(pair)\n"),),
    ),
    (
        "clipping asks for itself",
        "those for clipping too",
        (
            (
                "norm = " + _ALL,
                "own = squares[:, 1].sum() / dist.get_world_size()\n    dist.all_reduce(own)\n    norm = own.sqrt().item()",
            ),
        ),
    ),
    (
        "numbers of frozen layers and vectors travel, too",
        "What do the others need to know",
        (
            (
                _REDUCE,
                "    padded = torch.cat([squares, torch.zeros_like(squares), torch.zeros_like(squares)])\n"
                "    dist.all_reduce(padded)\n    squares = padded[: len(squares)]\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "takes no step",
        """
def flat_lars(shard, grad, velocity, layers, start, lr, trust, momentum, decay, max_norm):
    pass
""",
    ),
    (
        "the course's own optimizer, by another module's name for it",
        """
import dtcourse


def flat_lars(shard, grad, velocity, layers, start, lr, trust, momentum, decay, max_norm):
    theirs = (lambda thing, name: getattr(thing, name))(dtcourse, "large_" + "batch").LARS
    w = torch.nn.Parameter(shard)
    w.grad = grad
    theirs([w], lr=lr, momentum=momentum, weight_decay=decay, trust=trust, adapt_one_dimensional=True).step()
""",
    ),
]

ACCEPTED = [
    (
        "by each element's layer, summed with index_add",
        """
def flat_lars(shard, grad, velocity, layers, start, lr, trust, momentum, decay, max_norm):
    kinds = [kind for _, kind in layers] + ["frozen"]
    ends = torch.tensor([number for number, _ in layers]).cumsum(0)
    which = torch.searchsorted(ends, torch.arange(start, start + len(shard)), right=True)
    rows, vectors = {}, kinds.count("matrix")
    for i, kind in enumerate(kinds):
        if kind == "matrix":
            rows[i] = len(rows)
    row = torch.tensor([rows.get(i, vectors) for i in range(len(kinds))])[which]
    trains = torch.tensor([kind != "frozen" for kind in kinds])[which]
    grad = torch.where(trains, grad, torch.zeros_like(grad))
    matrix = row < vectors
    sums = torch.zeros(2 * vectors + 1, dtype=torch.double)
    sums.index_add_(0, row + vectors, grad.square())
    sums[:vectors].index_add_(0, row[matrix], shard[matrix].square())
    dist.all_reduce(sums)
    norm = sums[vectors:].sum().sqrt()
    clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    length, slope = sums[:vectors].sqrt(), sums[vectors:-1].sqrt() * clip
    share = torch.where((length > 0) & (slope > 0), trust * length / (slope + decay * length), 1.0)
    share = torch.cat([share, torch.ones(1, dtype=torch.double)])[row]
    step = lr * share * (clip * grad + decay * torch.where(matrix, shard, torch.zeros_like(shard)))
    velocity.copy_(torch.where(trains, momentum * velocity + step, velocity))
    shard.sub_(torch.where(trains, velocity, torch.zeros_like(shard)))
""",
    ),
    (
        "all ranks' squares are gathered",
        (
            (
                _REDUCE,
                "    flat = torch.cat([squares[:-1].flatten(), squares[-1:, 1]])\n"
                "    every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]\n"
                "    dist.all_gather(every, flat)\n"
                "    flat = sum(every)\n"
                "    squares[:-1], squares[-1, 1] = flat[:-1].view(-1, 2), flat[-1]\n",
            ),
        ),
    ),
    (
        "PyTorch's 1e-6 in clipping",
        ((_CLIP, "clip = min(1.0, max_norm / (norm + 1e-6))"),),
    ),
]
