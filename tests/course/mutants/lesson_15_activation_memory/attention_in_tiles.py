"""Answers to attention_in_tiles: see test_exercises.py."""

MUTANTS = [
    (
        "saves all probabilities",
        "What does backward need that it cannot make again",
        """
def tiled_attention(q, k, v, causal, block):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v
""",
    ),
    (
        "tiles in forward, and autograd keeps them all",
        "What does backward need that it cannot make again",
        """
def tiled_attention(q, k, v, causal, block):
    out = []
    for rows in torch.arange(q.shape[-2]).split(block):
        scores = q[..., rows, :] @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.arange(k.shape[-2]) > rows[:, None], -math.inf)
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, -2)
""",
    ),
    (
        "the weighted values are not rescaled",
        "When a new maximum comes",
        """
def tiled_attention(q, k, v, causal, block):
    '''The attention of q, k, v: (..., queries, E).'''
    return TiledAttention.apply(q, k, v, causal, block)


def tiles(length, block):
    return [torch.arange(start, min(start + block, length)) for start in range(0, length, block)]


def scores_of(q, k, rows, columns, causal):
    scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(columns > rows[:, None], -math.inf) if causal else scores


class TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1])
        for rows in tiles(q.shape[-2], block):
            largest = q.new_full((*q.shape[:-2], len(rows), 1), -math.inf)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
            for columns in tiles(k.shape[-2], block):
                if causal and columns[0] > rows[-1]:
                    break
                scores = scores_of(q, k, rows, columns, causal)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                p, shrink = (scores - largest).exp(), (before - largest).exp()
                total = total * shrink + p.sum(-1, keepdim=True)
                weighted = weighted + p @ v[..., columns, :]
            out[..., rows, :] = weighted / total
            logsumexp[..., rows] = (largest + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows in tiles(q.shape[-2], ctx.block):
            dO = grad[..., rows, :]
            delta = (dO * out[..., rows, :]).sum(-1, keepdim=True)
            for columns in tiles(k.shape[-2], ctx.block):
                if ctx.causal and columns[0] > rows[-1]:
                    break
                p = (scores_of(q, k, rows, columns, ctx.causal) - logsumexp[..., rows, None]).exp()
                grad_scores = scale * p * (dO @ v[..., columns, :].mT - delta)
                grad_q[..., rows, :] += grad_scores @ k[..., columns, :]
                grad_k[..., columns, :] += grad_scores.mT @ q[..., rows, :]
                grad_v[..., columns, :] += p.mT @ dO
        return grad_q, grad_k, grad_v, None, None
""",
    ),
    (
        "exponentials without a maximum",
        "infinities or NaN",
        """
def tiled_attention(q, k, v, causal, block):
    '''The attention of q, k, v: (..., queries, E).'''
    return TiledAttention.apply(q, k, v, causal, block)


def tiles(length, block):
    return [torch.arange(start, min(start + block, length)) for start in range(0, length, block)]


def scores_of(q, k, rows, columns, causal):
    scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(columns > rows[:, None], -math.inf) if causal else scores


class TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1])
        for rows in tiles(q.shape[-2], block):
            largest = q.new_full((*q.shape[:-2], len(rows), 1), -math.inf)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
            for columns in tiles(k.shape[-2], block):
                if causal and columns[0] > rows[-1]:
                    break
                scores = scores_of(q, k, rows, columns, causal)
                before, largest = largest, torch.zeros_like(largest)
                p, shrink = (scores - largest).exp(), 1.0
                total = total * shrink + p.sum(-1, keepdim=True)
                weighted = weighted * shrink + p @ v[..., columns, :]
            out[..., rows, :] = weighted / total
            logsumexp[..., rows] = (largest + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows in tiles(q.shape[-2], ctx.block):
            dO = grad[..., rows, :]
            delta = (dO * out[..., rows, :]).sum(-1, keepdim=True)
            for columns in tiles(k.shape[-2], ctx.block):
                if ctx.causal and columns[0] > rows[-1]:
                    break
                p = (scores_of(q, k, rows, columns, ctx.causal) - logsumexp[..., rows, None]).exp()
                grad_scores = scale * p * (dO @ v[..., columns, :].mT - delta)
                grad_q[..., rows, :] += grad_scores @ k[..., columns, :]
                grad_k[..., columns, :] += grad_scores.mT @ q[..., rows, :]
                grad_v[..., columns, :] += p.mT @ dO
        return grad_q, grad_k, grad_v, None, None
""",
    ),
    (
        "no delta",
        "on its way through the softmax",
        """
def tiled_attention(q, k, v, causal, block):
    '''The attention of q, k, v: (..., queries, E).'''
    return TiledAttention.apply(q, k, v, causal, block)


def tiles(length, block):
    return [torch.arange(start, min(start + block, length)) for start in range(0, length, block)]


def scores_of(q, k, rows, columns, causal):
    scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(columns > rows[:, None], -math.inf) if causal else scores


class TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1])
        for rows in tiles(q.shape[-2], block):
            largest = q.new_full((*q.shape[:-2], len(rows), 1), -math.inf)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
            for columns in tiles(k.shape[-2], block):
                if causal and columns[0] > rows[-1]:
                    break
                scores = scores_of(q, k, rows, columns, causal)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                p, shrink = (scores - largest).exp(), (before - largest).exp()
                total = total * shrink + p.sum(-1, keepdim=True)
                weighted = weighted * shrink + p @ v[..., columns, :]
            out[..., rows, :] = weighted / total
            logsumexp[..., rows] = (largest + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows in tiles(q.shape[-2], ctx.block):
            dO = grad[..., rows, :]
            delta = (dO * out[..., rows, :]).sum(-1, keepdim=True)
            for columns in tiles(k.shape[-2], ctx.block):
                if ctx.causal and columns[0] > rows[-1]:
                    break
                p = (scores_of(q, k, rows, columns, ctx.causal) - logsumexp[..., rows, None]).exp()
                grad_scores = scale * p * (dO @ v[..., columns, :].mT)
                grad_q[..., rows, :] += grad_scores @ k[..., columns, :]
                grad_k[..., columns, :] += grad_scores.mT @ q[..., rows, :]
                grad_v[..., columns, :] += p.mT @ dO
        return grad_q, grad_k, grad_v, None, None
""",
    ),
    (
        "forgets the shorter last tile",
        "Is every key in one tile",
        """
def tiled_attention(q, k, v, causal, block):
    '''The attention of q, k, v: (..., queries, E).'''
    return TiledAttention.apply(q, k, v, causal, block)


def tiles(length, block):
    return [torch.arange(start, min(start + block, length)) for start in range(0, max(length - block, 0) + 1, block)]


def scores_of(q, k, rows, columns, causal):
    scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(columns > rows[:, None], -math.inf) if causal else scores


class TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        out, logsumexp = torch.zeros_like(q), q.new_zeros(q.shape[:-1])
        for rows in tiles(q.shape[-2], block):
            largest = q.new_full((*q.shape[:-2], len(rows), 1), -math.inf)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
            for columns in tiles(k.shape[-2], block):
                if causal and columns[0] > rows[-1]:
                    break
                scores = scores_of(q, k, rows, columns, causal)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                p, shrink = (scores - largest).exp(), (before - largest).exp()
                total = total * shrink + p.sum(-1, keepdim=True)
                weighted = weighted * shrink + p @ v[..., columns, :]
            out[..., rows, :] = weighted / total
            logsumexp[..., rows] = (largest + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows in tiles(q.shape[-2], ctx.block):
            dO = grad[..., rows, :]
            delta = (dO * out[..., rows, :]).sum(-1, keepdim=True)
            for columns in tiles(k.shape[-2], ctx.block):
                if ctx.causal and columns[0] > rows[-1]:
                    break
                p = (scores_of(q, k, rows, columns, ctx.causal) - logsumexp[..., rows, None]).exp()
                grad_scores = scale * p * (dO @ v[..., columns, :].mT - delta)
                grad_q[..., rows, :] += grad_scores @ k[..., columns, :]
                grad_k[..., columns, :] += grad_scores.mT @ q[..., rows, :]
                grad_v[..., columns, :] += p.mT @ dO
        return grad_q, grad_k, grad_v, None, None
""",
    ),
    (
        "the whole table again in backward",
        "Is a tile gone before the next",
        """
def tiled_attention(q, k, v, causal, block):
    '''The attention of q, k, v: (..., queries, E).'''
    return TiledAttention.apply(q, k, v, causal, block)


def tiles(length, block):
    return [torch.arange(start, min(start + block, length)) for start in range(0, length, block)]


def scores_of(q, k, rows, columns, causal):
    scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(columns > rows[:, None], -math.inf) if causal else scores


class TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1])
        for rows in tiles(q.shape[-2], block):
            largest = q.new_full((*q.shape[:-2], len(rows), 1), -math.inf)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(q[..., rows, :])
            for columns in tiles(k.shape[-2], block):
                if causal and columns[0] > rows[-1]:
                    break
                scores = scores_of(q, k, rows, columns, causal)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                p, shrink = (scores - largest).exp(), (before - largest).exp()
                total = total * shrink + p.sum(-1, keepdim=True)
                weighted = weighted * shrink + p @ v[..., columns, :]
            out[..., rows, :] = weighted / total
            logsumexp[..., rows] = (largest + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.causal, ctx.block = causal, block
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows in tiles(q.shape[-2], 10**6):
            dO = grad[..., rows, :]
            delta = (dO * out[..., rows, :]).sum(-1, keepdim=True)
            for columns in tiles(k.shape[-2], 10**6):
                if ctx.causal and columns[0] > rows[-1]:
                    break
                p = (scores_of(q, k, rows, columns, ctx.causal) - logsumexp[..., rows, None]).exp()
                grad_scores = scale * p * (dO @ v[..., columns, :].mT - delta)
                grad_q[..., rows, :] += grad_scores @ k[..., columns, :]
                grad_k[..., columns, :] += grad_scores.mT @ q[..., rows, :]
                grad_v[..., columns, :] += p.mT @ dO
        return grad_q, grad_k, grad_v, None, None
""",
    ),
]

NOTHING = [
    (
        "the whole matrix of scores",
        """
def tiled_attention(q, k, v, causal, block):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v
""",
    ),
    (
        "PyTorch's own",
        """
import torch.nn.functional as F


def tiled_attention(q, k, v, causal, block):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
""",
    ),
    (
        "the course's own",
        """
from dtcourse.memory.attention import memory_efficient_attention


def tiled_attention(q, k, v, causal, block):
    return memory_efficient_attention(q, k, v, causal=causal, block_q=block, block_k=block)
""",
    ),
]

ACCEPTED = [
    (
        "begins with the least finite number",
        (("len(rows), 1), -math.inf)", "len(rows), 1), torch.finfo(q.dtype).min)"),),
    ),
    (
        "queries scaled before, by einsum",
        (
            (
                "scores = q[..., rows, :] @ k[..., columns, :].mT / math.sqrt(q.shape[-1])",
                "small = q[..., rows, :] * q.shape[-1] ** -0.5\n"
                '    scores = torch.einsum("...qe,...ke->...qk", small, k[..., columns, :])',
            ),
        ),
    ),
]
