"""Answers to clip_gradients: see test_exercises.py."""

from tests.course.hidden import EVERYONES

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

MUTANTS = [
    ("its own shard only", "who knows the rest", _CLIP.format(**_CLIP_RIGHT | {"reduce": "pass"})),
    (
        "adds replicated gradients up, too",
        "once, or once per rank",
        _CLIP.format(**_CLIP_RIGHT | {"summed": "[*replicated, *sharded]", "alone": "[]"}),
    ),
    (
        "a mean instead of a sum",
        "who knows the rest",
        _CLIP.format(
            **_CLIP_RIGHT | {"reduce": "dist.all_reduce(parts); parts /= dist.get_world_size()"}
        ),
    ),
    (
        "scales short gradients up",
        "only gradients that are too long",
        _CLIP.format(
            **_CLIP_RIGHT | {"scale": "[g.mul_(max_norm / norm) for g in [*replicated, *sharded]]"}
        ),
    ),
    (
        "clips the shards alone",
        "is it among what you scale",
        _CLIP.format(
            **_CLIP_RIGHT
            | {"scale": "[g.mul_(max_norm / norm) for g in sharded if norm > max_norm]"}
        ),
    ),
    (
        "a rank without a shard stays away",
        "waiting",
        _CLIP.format(**_CLIP_RIGHT | {"reduce": "dist.all_reduce(parts) if sharded else None"}),
    ),
    (
        "a large epsilon",
        "Is something added to the norm",
        _CLIP.format(
            **_CLIP_RIGHT
            | {
                "scale": "[g.mul_(max_norm / (norm + 0.01)) for g in [*replicated, *sharded] if norm > max_norm]"
            }
        ),
    ),
    (
        "not in place",
        "Is it scaled in place",
        _CLIP.format(
            **_CLIP_RIGHT
            | {
                "scale": "[g * (max_norm / norm) for g in [*replicated, *sharded] if norm > max_norm]"
            }
        ),
    ),
    (
        "scaled twice",
        "how often do you scale",
        _CLIP.format(
            **_CLIP_RIGHT
            | {
                "scale": "[g.mul_((max_norm / norm) ** 2) for g in [*replicated, *sharded] if norm > max_norm]"
            }
        ),
    ),
    (
        "number by number",
        "One factor is right for all",
        _CLIP.format(
            **_CLIP_RIGHT
            | {
                "scale": "[g.clamp_(-max_norm, max_norm) for g in [*replicated, *sharded] if norm > max_norm]"
            }
        ),
    ),
    (
        "forgets the replicated",
        "On 1 rank the norm of all gradients",
        _CLIP.format(**_CLIP_RIGHT | {"alone": "[]"}),
    ),
    (
        "gathers the shards",
        "the least that the others",
        """
def clip_gradients(replicated, sharded, max_norm):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, sharded)
    square = sum(g.square().sum().item() for part in everyone for g in part)
    norm = math.sqrt(square + sum(g.square().sum().item() for g in replicated))
    if norm > max_norm:
        for g in [*replicated, *sharded]:
            g.mul_(max_norm / norm)
    return norm
""",
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """def clip_gradients(replicated, sharded, max_norm):
    own = torch.zeros((), dtype=torch.double)
    for g in sharded:
        own += g.square().sum()
    square = sum(everyones(own)).item() + sum(g.square().sum().item() for g in replicated)
    norm = math.sqrt(square)
    for g in [*replicated, *sharded] if norm > max_norm else []:
        g.mul_(max_norm / norm)
    return norm
""",
    ),
]

ACCEPTED = [
    ("with PyTorch's epsilon", (("g.mul_(max_norm / norm)", "g.mul_(max_norm / (norm + 1e-6))"),)),
    (
        "multiplied in any case, by one at most",
        (
            ("    if norm > max_norm:\n        for g", "    if True:\n        for g"),
            ("g.mul_(max_norm / norm)", "g.mul_(min(1.0, max_norm / (norm + 1e-6)))"),
        ),
    ),
]

NOTHING = [
    (
        "each rank's own norm, by PyTorch",
        """
def clip_gradients(replicated, sharded, max_norm):
    norm = torch.nn.utils.get_total_norm([*replicated, *sharded]).item()
    for g in [*replicated, *sharded]:
        g.mul_(min(1.0, max_norm / norm))
    return norm
""",
    ),
]
