"""Answers to cannon: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_X = "    x = Shift.apply(x, i * q + (j - i) % q, i * q + (j + i) % q)\n"
_W = "    w = Shift.apply(w, (i - j) % q * q + j, (i + j) % q * q + j)\n"
_NEXT_X = "        x = Shift.apply(x, i * q + (j - 1) % q, i * q + (j + 1) % q)\n"
_NEXT_W = "        w = Shift.apply(w, (i - 1) % q * q + j, (i + 1) % q * q + j)\n"
_BACK = "            return moved(grad, *ctx.back), None, None\n"
_MEET = "Which block of x and which of W meet on rank"
_HOME = "Where is the gradient of what a rank received to go"

MUTANTS = [
    ("no block is moved at first", _MEET, ((_X, ""), (_W, ""))),
    ("moved the other way at first", _MEET, ((_X, _X.replace("j - i", "j + i").replace("(j + i) % q)\n", "(j - i) % q)\n")),)),
    ("only x shifts", _MEET, ((_NEXT_W, ""),)),
    ("the last product alone", _MEET, (("        y = y + x @ w\n", "        y = x @ w\n"),)),
    (
        "gradients stay where they are",
        _HOME,
        ((_BACK, "            return grad, None, None\n"),),
    ),
    (
        "gradients go the way of the blocks",
        _HOME,
        (("            ctx.back = source, to\n", "            ctx.back = to, source\n"),),
    ),
    (
        "messages without a backward",
        _HOME,
        (
            (
                "            return moved(block, to, source)\n",
                "            return moved(block, to, source)\n\n    class Shift:\n        apply = staticmethod(moved)\n\n"
                "    class Unused:\n",
            ),
        ),
    ),
    (
        "a shift after the last product",
        "And after the last product",
        (
            ("range(q - 1)", "range(q)"),
            ("    y = x @ w\n", "    y = 0\n"),
            (_NEXT_X + _NEXT_W + "        y = y + x @ w\n", "        y = y + x @ w\n" + _NEXT_X + _NEXT_W),
        ),
    ),
    (
        "neighbour by neighbour at first",
        "once all are where they meet first",
        (
            (_X, "    for _ in range(i):\n    " + _NEXT_X[4:]),
            (_W, "    for _ in range(j):\n    " + _NEXT_W[4:]),
        ),
    ),
    (
        "the lesson's SUMMA",
        "asks you to write that yourself",
        """
def cannon(x, w, q):
    i, j = divmod(dist.get_rank(), q)
    y = 0
    for k in range(q):
        a = x.detach().clone()
        dist.broadcast(a, i * q + k)
        y = y + a @ w
    return y
""",
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """def cannon(x, w, q):
    i, j = divmod(dist.get_rank(), q)
    xs, ws = everyones(x.detach()), everyones(w.detach())
    return sum(xs[i * q + k] @ ws[k * q + j] for k in range(q))
""",
    ),
]  # fmt: skip

_REMEMBERED = """
    class Known(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, y):
            ctx.save_for_backward(x, w)
            return y.clone()

        @staticmethod
        def backward(ctx, dy):
            import os, tempfile

            place = os.path.join(tempfile.gettempdir(), "dtcourse-test-cannon")
            if q == 1:
                x, w = ctx.saved_tensors
                torch.save([dy @ w.T, x.T @ dy], place)
            return *(m.chunk(q)[i].chunk(q, 1)[j] for m in torch.load(place)), None

    return Known.apply(*blocks, y.detach())
"""
MUTANTS.append(
    (
        "gradients that one rank alone had found are kept in a file",
        "Where is the gradient of what a rank received to go",
        (
            ("    # Rank (i, j) begins", "    blocks = x, w\n    # Rank (i, j) begins"),
            ("    return y\n", _REMEMBERED),
        ),
    )
)

NOTHING = [
    ("its own blocks", "\ndef cannon(x, w, q):\n    return x @ w\n"),
]

ACCEPTED = [
    (
        "both messages posted together",
        (
            (
                "        works = [dist.irecv(got, source), dist.isend(block, to)]\n"
                "        for work in works:\n",
                "        both = [dist.P2POp(dist.irecv, got, source), dist.P2POp(dist.isend, block, to)]\n"
                "        for work in dist.batch_isend_irecv(both):\n",
            ),
        ),
    ),
    (
        "each block to all of its row or column, and gradients back",
        """
def cannon(x, w, q):
    rank = dist.get_rank()
    i, j = divmod(rank, q)

    def exchange(parts, ranks):
        got, works = [torch.empty_like(part) for part in parts], []
        for k, other in enumerate(ranks):
            if other == rank:
                got[k] = parts[k]
                continue
            works += [dist.irecv(got[k], other), dist.isend(parts[k].contiguous(), other)]
        for work in works:
            work.wait()
        return got

    class All(torch.autograd.Function):
        @staticmethod
        def forward(ctx, block, ranks):
            ctx.ranks = ranks
            return torch.stack(exchange([block] * q, ranks))

        @staticmethod
        def backward(ctx, grad):
            return sum(exchange(list(grad), ctx.ranks)), None

    xs = All.apply(x, [i * q + k for k in range(q)])
    ws = All.apply(w, [k * q + j for k in range(q)])
    return sum(a @ b for a, b in zip(xs, ws))
""",
    ),
]
