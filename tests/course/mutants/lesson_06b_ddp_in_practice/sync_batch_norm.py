"""Answers to sync_batch_norm: see test_exercises.py."""

from tests.course.edits import edited

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

MUTANTS = [
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
        edited(
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
        edited(
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
        edited(
            _NORMALISE,
            ("(g - mean_g.view(shape) - x_hat * mean_gx.view(shape))", "g"),
        ),
    ),
    (
        "sums of this rank alone",
        "sums over all ranks",
        edited(
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
        edited(_NORMALISE, ("own[1], own[0], None", "sums[1], sums[0], None")),
    ),
    (
        "a message each",
        "What can travel in one tensor",
        edited(
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
        "Which numbers of a rank are enough",
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
    (
        "every sample gathered, in place of the sums",
        "Which numbers of a rank are enough",
        edited(
            _NORMALISE,
            (
                "        sums = torch.cat([x.sum(others), x.square().sum(others), count])\n        dist.all_reduce(sums)\n",
                "        padded = x.new_zeros(16, *x.shape[1:])\n        padded[: len(x)] = x\n"
                "        own = torch.cat([padded.flatten(), count])\n"
                "        every = own.new_empty(dist.get_world_size(), len(own))\n"
                "        dist.all_gather(list(every), own)\n"
                "        xs = every[:, :-1].reshape(-1, *x.shape[1:])\n"
                "        sums = torch.cat([xs.sum(others), xs.square().sum(others), every[:, -1].sum()[None]])\n",
            ),
        ),
    ),
    (
        "autograd sends the count back, too",
        "Does the count travel back",
        """
def sync_batch_norm(x, weight, bias, eps):
    from torch.distributed.nn.functional import all_reduce

    channels = x.shape[1]
    others = [d for d in range(x.dim()) if d != 1]
    shape = [1, channels] + [1] * (x.dim() - 2)
    count = x.new_tensor([x.numel() / channels])
    sums = all_reduce(torch.cat([x.sum(others), x.square().sum(others), count]))
    mean = sums[:channels] / sums[-1]
    variance = sums[channels:-1] / sums[-1] - mean.square()
    x_hat = (x - mean.view(shape)) / (variance + eps).sqrt().view(shape)
    return x_hat * weight.view(shape) + bias.view(shape)
""",
    ),
]

NOTHING = [
    (
        "each rank's own",
        """
def sync_batch_norm(x, weight, bias, eps):
    return nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
""",
    ),
]

ACCEPTED = [
    (
        "PyTorch's function for the output, the count first",
        (
            (
                "sums = torch.cat([x.sum(others), x.square().sum(others), count])",
                "sums = torch.cat([count, x.sum(others), x.square().sum(others)])",
            ),
            (
                "mean = sums[:channels] / sums[-1]\n",
                "mean = sums[1 : 1 + channels] / sums[0]\n",
            ),
            ("sums[channels:-1] / sums[-1] - mean", "sums[1 + channels :] / sums[0] - mean"),
            ("weight / std, sums[-1])", "weight / std, sums[0])"),
            (
                "return x_hat * weight.view(shape) + bias.view(shape)",
                "return nn.functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)",
            ),
        ),
    ),
    (
        "sums in 64 bits",
        (
            (
                "sums = torch.cat([x.sum(others), x.square().sum(others), count])",
                "sums = torch.cat([x.double().sum(others), x.double().square().sum(others), count.double()])",
            ),
            (
                "std = (variance + eps).sqrt()\n",
                "mean, std = mean.to(x.dtype), (variance + eps).sqrt().to(x.dtype)\n",
            ),
            ("weight / std, sums[-1])", "weight / std, sums[-1].to(x.dtype))"),
        ),
    ),
    (
        "PyTorch's own way: mean, variance and count of each rank, gathered and merged",
        (
            (
                "            sums = torch.cat([x.sum(others), x.square().sum(others), count])\n"
                "            dist.all_reduce(sums)\n"
                "            mean = sums[:channels] / sums[-1]\n"
                "            variance = sums[channels:-1] / sums[-1] - mean.square()\n",
                "            var, own_mean = torch.var_mean(x, others, correction=0)\n"
                "            own = torch.cat([own_mean, var, count])\n"
                "            every = own.new_empty(dist.get_world_size(), len(own))\n"
                "            dist.all_gather(list(every), own)\n"
                "            means, variances, counts = every.split([channels, channels, 1], dim=1)\n"
                "            mean = (counts * means).sum(0) / counts.sum()\n"
                "            variance = (counts * (variances + (means - mean).square())).sum(0) / counts.sum()\n",
            ),
            ("weight / std, sums[-1])", "weight / std, counts.sum())"),
        ),
    ),
    (
        "the same by all_gather_into_tensor, and the sums of backward gathered, too",
        (
            (
                "            sums = torch.cat([x.sum(others), x.square().sum(others), count])\n"
                "            dist.all_reduce(sums)\n",
                "            own = torch.cat([x.sum(others), x.square().sum(others), count])\n"
                "            every = own.new_empty(dist.get_world_size() * len(own))\n"
                "            dist.all_gather_into_tensor(every, own)\n"
                "            sums = every.view(-1, len(own)).sum(0)\n",
            ),
            (
                "            sums = own.clone()\n            dist.all_reduce(sums)\n",
                "            every = own.new_empty(dist.get_world_size(), *own.shape)\n"
                "            dist.all_gather_into_tensor(every.view(-1, own.shape[1]), own)\n"
                "            sums = every.sum(0)\n",
            ),
        ),
    ),
]
