"""Answers to attention_in_a_window: see test_exercises.py."""

_SEEN = "if columns[0] <= rows[-1] and columns[-1] > rows[0] - window:"
_MASK = "(age < 0) | (age >= window)"
_START = "torch.finfo(q.dtype).min"

# Tiles under autograd: right, and everything is kept.
WATCHED = """
def window_attention(q, k, v, window, block):
    parts, outs = torch.arange(q.shape[-2]).split(block), []
    for rows in parts:
        largest = q.new_full((*q.shape[:-2], len(rows), 1), -1e300)
        total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
        for columns in parts:
            if columns[0] > rows[-1] or columns[-1] <= rows[0] - window:
                continue
            age = rows[:, None] - columns
            s = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
            s = s.masked_fill((age < 0) | (age >= window), -math.inf)
            before, largest = largest, torch.maximum(largest, s.amax(-1, keepdim=True))
            p, shrink = (s - largest).exp(), (before - largest).exp()
            total = total * shrink + p.sum(-1, keepdim=True)
            weighted = weighted * shrink + p @ v[..., columns, :]
        outs.append(weighted / total)
    return torch.cat(outs, -2)
"""

MUTANTS = [
    (
        "a query that sees nothing in a tile",
        "a query that sees no key of its first tile",
        ((_START, "-math.inf"),),
    ),
    (
        "one key too many",
        "Which keys does the first query of a tile see",
        ((_MASK, "(age < 0) | (age > window)"),),
    ),
    (
        "the window is forgotten in the mask",
        "Which keys does the first query of a tile see",
        ((_MASK, "age < 0"),),
    ),
    (
        "the sum is not rescaled",
        "what happens to the sum",
        (("total[..., rows, :] * shrink + p", "total[..., rows, :] + p"),),
    ),
    (
        "the lesson's tiles: all up to the diagonal",
        "Which keys are too old",
        ((_SEEN, "if columns[0] <= rows[-1]:"),),
    ),
    ("all tiles", "Which keys are too old", ((_SEEN, "if block:"),)),
    (
        "no mask in backward",
        "with the same mask",
        (
            (
                "            scores = scores_of(q, k, rows, columns, ctx.window)\n",
                "            scores = q[..., rows, :] @ k[..., columns, :].mT * scale\n",
            ),
        ),
    ),
    (
        "delta is forgotten",
        "through the softmax (delta)",
        ((" - delta[..., rows, :])", ")"),),
    ),
    (
        "the scale is forgotten in backward",
        "where is the scale",
        (("grad_scores = scale * p", "grad_scores = p"),),
    ),
    (
        "one table in backward",
        "Is a tile gone before the next",
        (("tiles(q.shape[-2], ctx.window, ctx.block)", "tiles(q.shape[-2], ctx.window, 10**6)"),),
    ),
    (
        "autograd keeps every tile",
        "What does backward need that it cannot make again",
        WATCHED,
    ),
]

NOTHING = [
    (
        "the whole matrix of scores",
        """
def window_attention(q, k, v, window, block):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(1 - window)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
""",
    ),
    (
        "PyTorch's own",
        """
import torch.nn.functional as F


def window_attention(q, k, v, window, block):
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril().triu(1 - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
""",
    ),
    (
        "the course's own, causal",
        """
from dtcourse.memory.attention import memory_efficient_attention


def window_attention(q, k, v, window, block):
    return memory_efficient_attention(q, k, v, causal=True, block_q=block, block_k=block)
""",
    ),
]

ACCEPTED = [
    (
        "begins at the diagonal, where each query sees itself",
        (
            ("        for columns in parts:\n", "        for columns in reversed(parts):\n"),
            (_START, "-math.inf"),
        ),
    ),
    (
        "by slices, keys outside in backward",
        """
def window_attention(q, k, v, window, block):
    return Sliding.apply(q, k, v, window, block)


def part(x, i, block):
    return x[..., i * block : (i + 1) * block, :]


def scores(q, k, i, j, window, block):
    s = torch.einsum("...qe,...ke->...qk", part(q, i, block) * q.shape[-1] ** -0.5, part(k, j, block))
    query = i * block + torch.arange(s.shape[-2]).view(-1, 1)
    key = j * block + torch.arange(s.shape[-1])
    return s.masked_fill((key > query) | (key <= query - window), -1e300)


class Sliding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, window, block):
        out, logs = torch.empty_like(q), q.new_empty(*q.shape[:-1], 1)
        for i in range(-(-q.shape[-2] // block)):
            log = weighted = None
            for j in range(max(0, (i * block - window + 1) // block), i + 1):
                s = scores(q, k, i, j, window, block)
                own = torch.logsumexp(s, -1, keepdim=True)
                mean = (s - own).exp() @ part(v, j, block)
                if log is None:
                    log, weighted = own, mean
                else:
                    both = torch.logaddexp(log, own)
                    weighted = (log - both).exp() * weighted + (own - both).exp() * mean
                    log = both
            part(out, i, block).copy_(weighted)
            part(logs, i, block).copy_(log)
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.how = window, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logs = ctx.saved_tensors
        window, block = ctx.how
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        number = -(-q.shape[-2] // block)
        for j in range(number):
            for i in range(j, number):
                if i * block - window + 1 > (j + 1) * block - 1:
                    break
                p = (scores(q, k, i, j, window, block) - part(logs, i, block)).exp()
                g = part(grad, i, block)
                delta = (g * part(out, i, block)).sum(-1, keepdim=True)
                ds = p * (g @ part(v, j, block).mT - delta) * q.shape[-1] ** -0.5
                part(dq, i, block).add_(ds @ part(k, j, block))
                part(dk, j, block).add_(ds.mT @ part(q, i, block))
                part(dv, j, block).add_(p.mT @ g)
        return dq, dk, dv, None, None
""",
    ),
]
