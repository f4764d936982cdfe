"""Answers to diagnose_one_bit: see test_exercises.py."""

_HEAD = "\nimport torch\n\n\ndef diagnose_one_bit(gradients, sent, moved, sizes, lr, momentum):\n"
_LEFT = "            left = wanted - out\n"
_RESIDUAL = "What is left of the sum"
_SCALE = "Which magnitudes does each rank send"
_AFTER = "Of what do ranks send signs"
_TURNED = "In which sum of it"
_HEALTHY = "Here each rank sends what it should"
_ONE = 'return "one scale" if one_scale else "wrong residual", rank'

MUTANTS = [
    ("one scale is never said", _SCALE, ((_ONE, 'return "wrong residual", rank'),)),
    ("what ranks send is never looked at", _RESIDUAL, (("if not same(out, compressed(wanted, sizes)):", "if False:"),)),
    ("the movement is never looked at", _TURNED, (("    if not same(moved, lr * mean):\n", "    if False:\n"),)),
    ("no residual", _HEALTHY, ((_LEFT, ""),)),
    ("what is left of this momentum, as somebody kept", _HEALTHY, ((_LEFT, "            left = velocity - out\n"),)),
    ("momentum is not added", _HEALTHY, (("velocity = momentum * velocity + g", "velocity = g"),)),
    ("momentum as Adam's", _HEALTHY, (("velocity = momentum * velocity + g", "velocity = momentum * velocity + (1 - momentum) * g"),)),
    ("one scale, as the lesson's cell has it", _HEALTHY, (("compressed(wanted, sizes)", "compressed(wanted, [n])"),)),
    ("the sum of what was sent", _HEALTHY, (("    mean = sent.mean(1)\n", "    mean = sent.sum(1)\n"),)),
    ("a learning rate too few", _HEALTHY, (("    if not same(moved, lr * mean):\n", "    if not same(moved, mean):\n"),)),
    ("the rank after", _TURNED, (('return "turned round", rank', 'return "turned round", (rank + 1) % p'),)),
    ("turned round is momentum", _TURNED, (("turned = mean - 2 * sent[:, rank] / p", "turned = mean - sent[:, rank] / p"),)),
    ("whoever moves otherwise is turned round", _AFTER, (('        return "momentum after", None', '        return "turned round", 0'),)),
    ("without the rank", _RESIDUAL, ((_ONE, 'return "one scale" if one_scale else "wrong residual", None'),)),
    ("what is wrong, without a rank", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    (
        "the course's compressor",
        "dtcourse.compression",
        (("    _, p, n = gradients.shape\n", "    from dtcourse.compression import ScaledSign\n\n    ScaledSign()\n    _, p, n = gradients.shape\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "each way replayed as a whole, all ranks together",
        _HEAD
        + """    T, p, n = gradients.shape

    def signs(x, sizes):
        parts = torch.split(x, sizes, -1)
        return torch.cat([part.sign() * part.abs().mean(-1, keepdim=True) for part in parts], -1)

    def replay(residual=None, scale=None, turned=None, after=False):
        u, left, late = torch.zeros_like(sent[0]), torch.zeros_like(sent[0]), torch.zeros_like(moved[0])
        for t in range(T):
            u = gradients[t] if after else momentum * u + gradients[t]
            wanted = u + left
            out = signs(wanted, sizes)
            if scale is not None:
                out[scale] = signs(wanted[scale], [n])
            left = wanted - out
            if residual is not None:
                left[residual] = u[residual] - out[residual]
            votes = out.clone()
            if turned is not None:
                votes[turned] *= -1
            step = votes.mean(0)
            if after:
                step = late = momentum * late + step
            if (out - sent[t]).norm() > 1e-7 * out.norm():
                return False
            if (lr * step - moved[t]).norm() > 1e-7 * (lr * votes).norm():
                return False
        return True

    if replay():
        return "healthy", None
    if replay(after=True):
        return "momentum after", None
    for rank in range(p):
        for name, how in (("wrong residual", "residual"), ("one scale", "scale"), ("turned round", "turned")):
            if replay(**{how: rank}):
                return [name, rank]
""",
    ),
    (
        "scales first, then the movement, then the residual",
        _HEAD
        + """    T, p, n = gradients.shape
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    for rank in range(p):
        sizes_of = [[float(sent[t, rank, a].abs()) for a in edges[:-1]] for t in range(T)]
        if all(max(row) - min(row) < 1e-9 * max(row) for row in sizes_of):
            return "one scale", rank
    # moved = lr * weights @ sent, of which weights of 1/p are right.
    A = sent.permute(0, 2, 1).reshape(T * n, p)
    weights = torch.linalg.lstsq(A, moved.reshape(T * n, 1) / lr).solution.flatten()
    if (A @ weights - moved.flatten() / lr).norm() > 1e-6 * moved.norm() / lr:
        return "momentum after", None
    if (weights < 0).any():
        return "turned round", int(weights.argmin())
    for rank in range(p):
        u = left = 0.0
        for t in range(T):
            u = momentum * u + gradients[t, rank]
            wanted = u + left
            for a, b in zip(edges, edges[1:]):
                if abs(wanted[a:b].abs().mean() - sent[t, rank, a].abs()) > 1e-8 * sent[t, rank, a].abs():
                    return "wrong residual", rank
            left = wanted - sent[t, rank]
    return "healthy", None
""",
    ),
]

NOTHING = [
    ("always healthy", _HEAD + '    return "healthy", None\n'),
    ("always momentum", _HEAD + '    return "momentum after", None\n'),
]
