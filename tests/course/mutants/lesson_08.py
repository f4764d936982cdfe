"""Plausible wrong answers to lesson 08's exercises: (name, words of the sentence that rejects it, code)."""

_RATE = """
def learning_rate(samples, batch, base_lr, base_batch, warmup, total):
    if batch < 1 or base_batch < 1 or warmup >= total:
        raise ValueError("no")
    peak = {peak}
    if samples < warmup:
        return {warm}
    done = {done}
    return peak * (1 + math.cos(math.pi * done)) / 2
"""
_RIGHT = {
    "peak": "base_lr * batch / base_batch",
    "warm": "base_lr + (peak - base_lr) * samples / warmup",
    "done": "min(1.0, (samples - warmup) / (total - warmup))",
}

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

_CLIP = """
def clip_gradients(replicated, sharded, max_norm):
    parts = torch.zeros((), dtype=torch.double)
    for g in {summed}:
        parts += g.square().sum()
    {reduce}
    whole = sum(g.square().sum().item() for g in {alone})
    norm = math.sqrt(parts.item() + whole)
    {scale}
    return norm
"""
_CLIP_RIGHT = {
    "summed": "sharded",
    "reduce": "dist.all_reduce(parts)",
    "alone": "replicated",
    "scale": "[g.mul_(max_norm / norm) for g in [*replicated, *sharded] if norm > max_norm]",
}

_NOISE = """
def noise_scale(gradients, batch):
    ranks = dist.get_world_size()
    small = gradients.square().sum(1)
    {reduce}
    averaged = gradients.clone()
    dist.all_reduce(averaged)
    big = (averaged / {divide}).square().sum(1)
    b, big_b = {batches}
    signal = (big_b * big - b * small) / (big_b - b)
    noise = (small - big) / (1 / b - 1 / big_b)
    {end}
"""
_NOISE_RIGHT = {
    "reduce": "dist.all_reduce(small); small /= ranks",
    "divide": "ranks",
    "batches": "batch, batch * ranks",
    "end": "signal, noise = signal.mean().item(), noise.mean().item()\n"
    "    return signal, noise, noise / signal if signal > 0 else math.nan",
}

MUTANTS = {
    "learning_rate": [
        ("warms up from nothing", "none at all, or the one that suits",
         _RATE.format(**_RIGHT | {"warm": "peak * samples / warmup"})),
        ("the square-root rule", "linear rule raise a rate",
         _RATE.format(**_RIGHT | {"peak": "base_lr * math.sqrt(batch / base_batch)"})),
        ("counts steps", "What do you divide by",
         _RATE.format(**_RIGHT | {"warm": "base_lr + (peak - base_lr) * samples / batch / warmup"})),
        ("the cosine begins at the start", "The cosine begins where the warm-up ends",
         _RATE.format(**_RIGHT | {"done": "min(1.0, samples / total) if samples > warmup else 0.0"})),
        ("goes on beyond the end", "comes up again",
         _RATE.format(**_RIGHT | {"done": "(samples - warmup) / (total - warmup)"})),
        ("refuses nothing", "should raise a ValueError",
         _RATE.format(**_RIGHT).replace('raise ValueError("no")', "return 0.0")),
    ],
    "lars_step": [
        ("plain SGD", "this layer's, or that of all layers",
         _LARS.format(**_LARS_RIGHT | {"adapts": "False"})),
        ("one ratio for all layers", "this layer's, or that of all layers", """
def lars_step(weights, gradients, velocities, lr, trust, momentum, decay):
    norm = lambda tensors: math.sqrt(sum(t.square().sum().item() for t in tensors))
    rate = trust * norm(weights) / (norm(gradients) + decay * norm(weights))
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        v.mul_(momentum).add_(g + decay * w, alpha=lr * rate)
        w.sub_(v)
"""),
        ("no decay in the ratio", "where does the decay appear",
         _LARS.format(**_LARS_RIGHT | {"below": "g.norm()"})),
        ("the rate outside of the velocity", "the gradient times the rate of that step",
         _LARS.format(**_LARS_RIGHT | {"update": "v.mul_(momentum).add_(g, alpha=rate); w.sub_(lr * v)"})),
        ("a new velocity each time", "kept from step to step",
         _LARS.format(**_LARS_RIGHT | {"update": "v = momentum * v + lr * rate * g; w.sub_(v)"})),
        ("adapts biases", "It has one dimension", _LARS.format(**_LARS_RIGHT | {"adapts": "True"})),
        ("a layer at zero stays there", "It starts at zero",
         _LARS.format(**_LARS_RIGHT | {"finite": "g.norm() > 0"})),
        ("divides by zero", "first gradient is zero",
         _LARS.format(**_LARS_RIGHT | {"finite": "w.norm() > 0", "below": "g.norm()"}).replace(
             "trust * w.norm() / g.norm()",
             "trust * w.norm() / (g.norm() + (decay * w.norm() if g.norm() > 0 else 0))")),
    ],
    "clip_gradients": [
        ("its own shard only", "who knows the rest", _CLIP.format(**_CLIP_RIGHT | {"reduce": "pass"})),
        ("adds replicated gradients up, too", "once, or once a rank",
         _CLIP.format(**_CLIP_RIGHT | {"summed": "[*replicated, *sharded]", "alone": "[]"})),
        ("a mean instead of a sum", "who knows the rest",
         _CLIP.format(**_CLIP_RIGHT | {"reduce": "dist.all_reduce(parts); parts /= dist.get_world_size()"})),
        ("scales short gradients up", "only when it is too long",
         _CLIP.format(**_CLIP_RIGHT | {"scale": "[g.mul_(max_norm / norm) for g in [*replicated, *sharded]]"})),
        ("clips the shards alone", "On 1 ranks the gradient is longer than",
         _CLIP.format(**_CLIP_RIGHT | {"scale": "[g.mul_(max_norm / norm) for g in sharded if norm > max_norm]"})),
        ("a rank without a shard stays away", "waiting",
         _CLIP.format(**_CLIP_RIGHT | {"reduce": "dist.all_reduce(parts) if sharded else None"})),
        ("forgets the replicated", "On 1 ranks the norm of all gradients",
         _CLIP.format(**_CLIP_RIGHT | {"alone": "[]"})),
        ("gathers the shards", "the least that the others", """
def clip_gradients(replicated, sharded, max_norm):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, sharded)
    square = sum(g.square().sum().item() for part in everyone for g in part)
    norm = math.sqrt(square + sum(g.square().sum().item() for g in replicated))
    if norm > max_norm:
        for g in [*replicated, *sharded]:
            g.mul_(max_norm / norm)
    return norm
"""),
    ],
    "noise_scale": [
        ("its own norm only", "of one rank, or the mean over all", _NOISE.format(**_NOISE_RIGHT | {"reduce": "pass"})),
        ("the sum for the average", "which the average", _NOISE.format(**_NOISE_RIGHT | {"divide": "1"})),
        ("forgets the ranks in B", "samples of all ranks together",
         _NOISE.format(**_NOISE_RIGHT | {"batches": "batch / ranks, batch"})),
        ("an average of ratios", "average each over the steps",
         _NOISE.format(**_NOISE_RIGHT | {"end": "s, n = signal.mean().item(), noise.mean().item()\n"
                                         "    return s, n, (noise / signal).mean().item() if s > 0 else math.nan"})),
        ("the last step only", "Which batch has a rank's own gradient",
         _NOISE.format(**_NOISE_RIGHT | {"end": "s, n = signal[-1].item(), noise[-1].item()\n"
                                         "    return s, n, n / s if s > 0 else math.nan"})),
        ("a negative scale", "there is no signal to compare with",
         _NOISE.format(**_NOISE_RIGHT | {"end": "s, n = signal.mean().item(), noise.mean().item()\n"
                                         "    return s, n, n / s"})),
    ],
}  # fmt: skip
