"""Plausible wrong answers to lesson 06's exercises: (name, words of the sentence that rejects it, code)."""

_ATTACH = """
def attach(model, bucket_bytes):
    buckets, full = [], True
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if full:
            buckets.append([])
        buckets[-1].append(p)
        full = sum(q.nbytes for q in buckets[-1]) >= bucket_bytes
    number = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    ready, sent = set(), []

    def send():
        flat = torch.cat([(torch.zeros_like(q) if q.grad is None else q.grad).flatten() for q in buckets[len(sent)]])
        sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def is_ready(p):
        ready.add(p)
        while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):
            send()

    def finish():
        while len(sent) < len(buckets):
            send()
        for bucket, (flat, work) in zip(buckets, sent, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for q, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
                q.grad = part.view_as(q)
        ready.clear()
        sent.clear()

    for p in number:
        p.register_post_accumulate_grad_hook(is_ready)
    return finish
"""

_NORMALISE = """
def sync_batch_norm(x, weight, bias, eps):
    return Normalise.apply(x, weight, bias, eps)


class Normalise(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, bias, eps):
        channels = x.shape[1]
        others = [d for d in range(x.dim()) if d != 1]
        shape = [1, channels] + [1] * (x.dim() - 2)
        count = x.new_tensor([x.numel() / channels])
        sums = torch.cat([x.sum(others), x.square().sum(others), count])
        dist.all_reduce(sums)
        mean = sums[:channels] / sums[-1]
        variance = sums[channels:-1] / sums[-1] - mean.square()
        std = (variance + eps).sqrt()
        x_hat = (x - mean.view(shape)) / std.view(shape)
        context.save_for_backward(x_hat, weight / std, sums[-1])
        context.others, context.shape = others, shape
        return x_hat * weight.view(shape) + bias.view(shape)

    @staticmethod
    def backward(context, g):
        x_hat, scale, count = context.saved_tensors
        shape = context.shape
        own = torch.stack([g.sum(context.others), (g * x_hat).sum(context.others)])
        sums = own.clone()
        dist.all_reduce(sums)
        mean_g, mean_gx = sums / count
        x_gradient = scale.view(shape) * (g - mean_g.view(shape) - x_hat * mean_gx.view(shape))
        return x_gradient, own[1], own[0], None
"""


def _but(code: str, *changes: tuple[str, str]) -> str:
    """The right answer, but for these changes."""
    for right, wrong in changes:
        assert code.count(right) == 1, right
        code = code.replace(right, wrong)
    return code


MUTANTS = {
    "ddp_with_buckets": [
        (
            "forgets to divide",
            "Who divides",
            _but(_ATTACH, ("            flat /= dist.get_world_size()\n", "")),
        ),
        (
            "sends in the order of readiness",
            "in one and the same order, whatever",
            """
def attach(model, bucket_bytes):
    buckets, full = [], True
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if full:
            buckets.append([])
        buckets[-1].append(p)
        full = sum(q.nbytes for q in buckets[-1]) >= bucket_bytes
    number = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    ready, sent = set(), {}

    def send(i):
        flat = torch.cat([(torch.zeros_like(q) if q.grad is None else q.grad).flatten() for q in buckets[i]])
        sent[i] = flat, dist.all_reduce(flat, async_op=True)

    def is_ready(p):
        ready.add(p)
        if ready.issuperset(buckets[number[p]]):
            send(number[p])

    def finish():
        for i in range(len(buckets)):
            if i not in sent:
                send(i)
        for i, (flat, work) in sent.items():
            work.wait()
            flat /= dist.get_world_size()
            for q, part in zip(buckets[i], flat.split([q.numel() for q in buckets[i]]), strict=True):
                q.grad = part.view_as(q)
        ready.clear()
        sent.clear()

    for p in number:
        p.register_post_accumulate_grad_hook(is_ready)
    return finish
""",
        ),
        (
            "waits in the hook",
            "it waits in the hook",
            _but(
                _ATTACH,
                ("dist.all_reduce(flat, async_op=True)))", "dist.all_reduce(flat)))"),
                ("            work.wait()\n", ""),
            ),
        ),
        (
            "sends after backward",
            "When do you learn that a gradient is ready",
            _but(
                _ATTACH,
                (
                    "        while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):\n            send()\n",
                    "",
                ),
            ),
        ),
        (
            "one bucket for all",
            "When is a bucket full",
            _but(_ATTACH, (">= bucket_bytes", ">= 1 << 40")),
        ),
        (
            "gives frozen parameters a place",
            "frozen parameter need a place",
            _but(
                _ATTACH,
                (
                    "reversed([p for p in model.parameters() if p.requires_grad])",
                    "reversed(list(model.parameters()))",
                ),
                (
                    "    for p in number:\n",
                    "    for p in [p for p in number if p.requires_grad]:\n",
                ),
            ),
        ),
        (
            "does not begin anew in the next step",
            "step",
            _but(_ATTACH, ("        ready.clear()\n        sent.clear()\n", "")),
        ),
        (
            "waits for what is not used",
            "the ranks disagree on call",
            _but(
                _ATTACH,
                (
                    "        while len(sent) < len(buckets):\n            send()\n        for bucket, (flat, work) in zip(buckets, sent, strict=True):",
                    "        for bucket, (flat, work) in zip(buckets, sent, strict=False):",
                ),
            ),
        ),
    ],
    "accumulate_uneven": [
        (
            "averages every time",
            "which forwards and which backwards",
            """
def accumulate(model, micro_batches, total):
    for x, y in micro_batches:
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (loss * dist.get_world_size() / total).backward()
""",
        ),
        (
            "forward outside no_sync",
            "DDP decides in *forward*",
            """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (loss * dist.get_world_size() / total).backward()
""",
        ),
        (
            "never averages",
            "No gradient was averaged",
            """
def accumulate(model, micro_batches, total):
    with model.no_sync():
        for x, y in micro_batches:
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            (loss * dist.get_world_size() / total).backward()
""",
        ),
        (
            "forgets that DDP divides",
            "what is left to you",
            """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (nn.functional.cross_entropy(model(x), y, reduction="sum") / total).backward()
""",
        ),
        (
            "a mean of means",
            "what does a micro-batch of 1 weigh",
            """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / len(micro_batches)).backward()
""",
        ),
        (
            "one large batch",
            "A batch that fits needs no accumulation",
            """
def accumulate(model, micro_batches, total):
    x, y = (torch.cat([part[i] for part in micro_batches]) for i in (0, 1))
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    (loss * dist.get_world_size() / total).backward()
""",
        ),
    ],
    "sync_batch_norm": [
        (
            "each rank for itself",
            "count every sample once",
            """
def sync_batch_norm(x, weight, bias, eps):
    return nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
""",
        ),
        (
            "the mean of the ranks' variances",
            "not the mean of the ranks' variances",
            _but(
                _NORMALISE,
                (
                    "x.square().sum(others), count])",
                    "(x - x.mean(others, keepdim=True)).square().sum(others), count])",
                ),
                (" - mean.square()\n", "\n"),
            ),
        ),
        (
            "every rank weighs the same",
            "different numbers of them",
            _but(
                _NORMALISE,
                (
                    "sums = torch.cat([x.sum(others), x.square().sum(others), count])",
                    "sums = torch.cat([x.mean(others), x.square().mean(others), torch.ones_like(count)])",
                ),
            ),
        ),
        (
            "mean and variance taken for constants",
            "which two sums over the whole batch",
            _but(
                _NORMALISE,
                ("(g - mean_g.view(shape) - x_hat * mean_gx.view(shape))", "g"),
            ),
        ),
        (
            "sums of this rank alone",
            "sums over all ranks",
            _but(
                _NORMALISE,
                (
                    "        sums = own.clone()\n        dist.all_reduce(sums)\n",
                    "        sums = own.clone()\n",
                ),
            ),
        ),
        (
            "gradients of weight and bias already summed",
            "summed over ranks already",
            _but(_NORMALISE, ("own[1], own[0], None", "sums[1], sums[0], None")),
        ),
        (
            "a message each",
            "What can travel in one tensor",
            _but(
                _NORMALISE,
                (
                    "        sums = torch.cat([x.sum(others), x.square().sum(others), count])\n        dist.all_reduce(sums)\n",
                    "        several = [x.sum(others), x.square().sum(others), count]\n"
                    "        for one in several:\n            dist.all_reduce(one)\n        sums = torch.cat(several)\n",
                ),
            ),
        ),
        (
            "gathers the whole batch",
            "Which sums are enough",
            """
def sync_batch_norm(x, weight, bias, eps):
    return Gathered.apply(x, weight, bias, eps)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, bias, eps):
        shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
        others = [d for d in range(x.dim()) if d != 1]
        everything = torch.zeros(dist.get_world_size(), 16, *x.shape[1:], dtype=x.dtype)
        counts = torch.zeros(dist.get_world_size(), dtype=x.dtype)
        everything[dist.get_rank(), : len(x)] = x
        counts[dist.get_rank()] = len(x)
        packed = torch.cat([everything.flatten(), counts])
        dist.all_reduce(packed)
        counts = packed[-dist.get_world_size() :].long().tolist()
        everything = packed[: -dist.get_world_size()].view_as(everything)
        whole = torch.cat([part[:n] for part, n in zip(everything, counts)])
        mean, std = whole.mean(others), (whole.var(others, unbiased=False) + eps).sqrt()
        x_hat = (x - mean.view(shape)) / std.view(shape)
        context.save_for_backward(x_hat, weight / std, torch.tensor(whole.numel() / x.shape[1]))
        context.others, context.shape = others, shape
        return x_hat * weight.view(shape) + bias.view(shape)

    @staticmethod
    def backward(context, g):
        x_hat, scale, count = context.saved_tensors
        shape = context.shape
        own = torch.stack([g.sum(context.others), (g * x_hat).sum(context.others)])
        sums = own.clone()
        dist.all_reduce(sums)
        mean_g, mean_gx = sums / count
        x_gradient = scale.view(shape) * (g - mean_g.view(shape) - x_hat * mean_gx.view(shape))
        return x_gradient, own[1], own[0], None
""",
        ),
    ],
}
