"""Plausible wrong answers to lesson 15's exercises: (name, words of the sentence that rejects it, code)."""

MUTANTS = {
    "checkpoint_with_random_state": [
        (
            "another dropout mask in the recompute",
            "Which random numbers does the second run draw",
            """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
        ),
        (
            "leaves the generator where the second run put it",
            "generator was left where",
            """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
        ),
        (
            "keeps everything",
            "Does autograd watch the first run",
            """
def my_checkpoint(function, *inputs):
    return function(*inputs)
""",
        ),
        (
            "the first block is left out of the graph",
            "first block of a network",
            """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
        ),
        (
            "gradients of the inputs alone",
            "where do their gradients come from",
            """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad) if wanted else [])
        return None, None, *(next(found) if x.requires_grad else None for x in inputs)
""",
        ),
    ],
    "attention_in_tiles": [
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
    ],
    "cut_a_chain": [
        (
            "segments of equally many layers",
            "how would you choose the cuts",
            """
def best_cuts(kept, inputs):
    n = len(kept)
    size = max(1, round(math.sqrt(n)))
    return list(range(0, n, size))
""",
        ),
        (
            "every layer a segment",
            "What is the square root",
            """
def best_cuts(kept, inputs):
    return list(range(len(kept)))
""",
        ),
        (
            "fills segments greedily",
            "how would you choose the cuts",
            """
def best_cuts(kept, inputs):
    best = None
    for limit in sorted({sum(kept[a:b]) for a in range(len(kept)) for b in range(a + 1, len(kept) + 1)}):
        if limit < max(kept):
            continue
        starts, size = [0], 0
        for i, own in enumerate(kept):
            if size + own > limit:
                starts.append(i)
                size = 0
            size += own
        peak = limit + sum(inputs[s] for s in starts)
        if best is None or peak < best[0]:
            best = peak, starts
    return best[1]
""",
        ),
        (
            "the end of each segment in place of its start",
            "the first layer of each segment",
            """
def best_cuts(kept, inputs):
    '''kept, inputs: bytes of each layer. Returns the first layers of the segments, rising, the first one 0.'''
    n = len(kept)
    before = [sum(kept[:i]) for i in range(n + 1)]
    best = (math.inf, [])
    for limit in {before[b] - before[a] for a in range(n) for b in range(a + 1, n + 1)}:
        # For the first i layers: the least bytes of inputs, and where its segments start.
        cheapest = [(0, [])] + [(math.inf, [])] * n
        for end in range(1, n + 1):
            for start in range(end):
                cost = cheapest[start][0] + inputs[start]
                if before[end] - before[start] <= limit and cost < cheapest[end][0]:
                    cheapest[end] = cost, [*cheapest[start][1], start]
        cost, starts = cheapest[n]
        best = min(best, (cost + limit, starts))
    return [*best[1][1:], len(kept)]
""",
        ),
    ],
}
