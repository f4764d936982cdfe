"""LARS, clipped, on a flat vector that ranks cut anywhere: all norms by one message."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, CheckFailed, Each, Exercise, require
from dtcourse.plural import plural

LARS = Exercise(
    "flat_lars",
    lesson="08b",
    title="LARS on flat shards that cut layers anywhere",
    takes=("flat_lars",),
    target="shards to 1e-12 of one process's on 1 to 4 ranks; one collective call per step, of 16 bytes per matrix and "
    "16 more",
    forbidden=("dtcourse.large_batch", "dtcourse.parameters", "dtcourse.sharding"),
    watched=("dtcourse.large_batch", "dtcourse.parameters", "dtcourse.sharding"),
)
Layers = list[tuple[int, str]]  # elements; "matrix", "vector" or "frozen"
Settings = dict[str, float]


def _steps(
    flat_lars: Any,
    own: tuple[Tensor, list[Tensor], int],
    layers: Layers,
    settings: list[Settings],
) -> Any:
    shard, gradients, start = own
    velocity = torch.zeros_like(shard)
    with torch.no_grad():
        for g, options in zip(gradients, settings, strict=True):
            flat_lars(shard, g, velocity, list(layers), start, **options)
    return shard


def lars(
    flat: Tensor, gradients: list[Tensor], layers: Layers, settings: list[Settings], eps: float
) -> Tensor:
    """The whole vector after those steps, by one process. eps: what clipping adds to the norm."""
    flat = flat.clone()
    sizes = [number for number, _ in layers]
    sizes.append(len(flat) - sum(sizes))
    kinds = [kind for _, kind in layers] + ["padding"]
    velocities = [torch.zeros(number, dtype=torch.double) for number in sizes]
    for gradient, s in zip(gradients, settings, strict=True):
        pieces = list(zip(kinds, flat.split(sizes), gradient.split(sizes), velocities, strict=True))
        trained = [one for one in pieces if one[0] in ("matrix", "vector")]
        norm = torch.cat([g for _, _, g, _ in trained]).norm().item()
        clip = min(1.0, s["max_norm"] / (norm + eps)) if norm else 1.0
        for kind, w, g, v in trained:
            g, share = clip * g, 1.0
            if kind == "matrix":
                if w.norm() > 0 and g.norm() > 0:
                    share = s["trust"] * (w.norm() / (g.norm() + s["decay"] * w.norm())).item()
                g = g + s["decay"] * w
            v.mul_(s["momentum"]).add_(g, alpha=s["lr"] * share)
            w.sub_(v)
    return flat


def _made(layers: Layers, padding: int, steps: int, sizes: list[float]) -> tuple[Any, Any]:
    """A flat vector and its gradients. A frozen layer's gradient, and the padding's, hold no numbers at all."""
    every = [*zip(layers, sizes, strict=True), ((padding, "frozen"), 0.0)]

    def gradient(number: int, kind: str, size: float) -> Tensor:
        size = math.nan if kind == "frozen" else size
        return size * torch.randn(number, dtype=torch.double)

    gradients = [torch.cat([gradient(*layer, size) for layer, size in every]) for _ in range(steps)]
    return torch.randn_like(gradients[0]), gradients


def _own(flat: Tensor, gradients: list[Tensor], cuts: list[int]) -> Each:
    """Of each rank: its part, its part of each gradient, and where these begin."""
    parts = [slice(*cut) for cut in pairwise(cuts)]
    return Each([(flat[p].clone(), [g[p].clone() for g in gradients], p.start) for p in parts])


def _settings(**changed: float) -> Settings:
    usual = {"lr": 2.0, "trust": 0.05, "momentum": 0.0, "decay": 0.0, "max_norm": 1e9}
    return usual | changed


def _off(mine: Tensor, right: Tensor) -> float:
    return (mine - right).nan_to_num(math.inf).abs().max().item() if len(right) else 0.0


def _ask(
    answer: Answer,
    layers: Layers,
    made: tuple[Any, Any],
    cuts: list[int],
    settings: list[Settings],
    hint: str,
    **options: Any,
) -> Any:
    """One run, whose parts have to be right. `made` is new for each: what one rank has seen alone, a file can keep."""
    flat, gradients = made
    ranks = len(cuts) - 1
    right = [lars(flat, gradients, layers, settings, eps) for eps in (0.0, 1e-6)]
    given = _own(flat, gradients, cuts)
    run = answer.run(_steps, ranks, given, layers, settings, timeout=8.0, **options)
    starts = [sum(number for number, _ in layers[:i]) for i in range(len(layers) + 1)]
    every = [*layers, (len(flat) - starts[-1], "padding")]
    parts = []
    for rank in range(ranks):
        start, end = cuts[rank], cuts[rank + 1]
        mine = run[rank]
        require(
            isinstance(mine, Tensor) and len(mine) == end - start,
            f"Rank {rank} of {ranks} holds {end - start} elements before the step. Change them in place.",
        )
        for i, (number, kind) in enumerate(every):
            a, b = max(start, starts[i]), min(end, starts[i] + number)
            if a < b:
                parts.append(
                    (kind in ("matrix", "vector"), rank, i, a, b, mine[a - start : b - start])
                )
    # First what was to stay as it is: whoever trains it has the norm of all wrong, too.
    for trains, rank, i, a, b, got in sorted(parts, key=lambda part: part[:3]):
        number, kind = every[i]
        off = min(_off(got, one[a:b]) / (1 + one[a:b].abs().max().item()) for one in right)
        if off <= 1e-12:
            continue
        what = "a frozen layer" if kind == "frozen" else kind
        require(
            trains,
            f"Rank {rank} of {ranks}: elements {a} to {b - 1} are {what}, and have changed. What their gradient holds "
            "is no number of yours.",
        )
        start = cuts[rank]
        own = _alone(made, layers, start, cuts[rank + 1], settings, 0.0)[a - start : b - start]
        why = hint
        if ranks > 1 and _off(got, own) < 1e-9:
            why = "It is what the norms of this rank's own elements give. Whose are missing?"
        raise CheckFailed(
            f"On {plural(ranks, 'rank')} (cut at {cuts}), after {plural(len(settings), 'step')}: rank {rank}'s part of "
            f"layer {i}, a {kind} at {starts[i]} to {starts[i] + number - 1}, is up to "
            f"{_off(got, right[0][a:b]):.2g} off. {why}"
        )
    return run


def _alone(made: tuple[Any, Any], layers: Layers, start: int, end: int, *how: Any) -> Tensor:
    """What the elements from start to end alone give."""
    cut, place = [], 0
    for number, kind in layers:
        cut.append((max(0, min(end, place + number) - max(start, place)), kind))
        place += number
    return lars(made[0][start:end], [g[start:end] for g in made[1]], cut, *how)


@LARS.check("matrices that two ranks share, and several in one shard", points=3)
def check_cuts(answer: Answer) -> None:
    """Each has its own ratio; gradients a thousand times apart; no momentum, no decay, no clipping."""
    layers: Layers = [(7, "matrix"), (12, "matrix"), (5, "matrix")]
    hint = (
        "Is |w| / |g| this layer's? Where does the shard begin in it, and do norms add up over "
        "ranks, or their squares?"
    )
    for cuts in ([0, 24], [0, 9, 24], [0, 3, 5, 21, 24]):
        _ask(answer, layers, _made(layers, 0, 1, [1.0, 1000.0, 1e-3]), cuts, [_settings()], hint)


@LARS.check("clipped before: by the norm of all layers", points=2, needs=("check_bytes",))
def check_clipping(answer: Answer) -> None:
    """LARS sees the clipped gradient; with decay, that changes the ratio."""
    layers: Layers = [(6, "matrix"), (4, "vector"), (10, "matrix")]
    for limit, hint in (
        (1e9, "This gradient is within the limit. Where does the decay appear? In two places."),
        (
            2.0,
            "The norm of all gradients, vectors among them, is above max_norm. In which order do clipping and ratio "
            "come, and what is |g| of the clipped gradient?",
        ),
    ):
        for cuts in ([0, 20], [0, 2, 13, 20]):
            made = _made(layers, 0, 1, [1.0, 30.0, 3.0])
            _ask(answer, layers, made, cuts, [_settings(decay=0.7, max_norm=limit)], hint)


@LARS.check("momentum over four steps, while the learning rate changes", points=1)
def check_momentum(answer: Answer) -> None:
    """The velocity holds the learning rate of its own time."""
    layers: Layers = [(9, "matrix"), (6, "vector")]
    settings = [_settings(lr=lr, momentum=0.9, decay=0.01) for lr in (1.0, 1.0, 0.1, 2.0)]
    for number, hint in (
        (2, "Is the velocity kept from step to step, in place?"),
        (
            4,
            "With a constant lr it is right. What goes into the velocity: the gradient, or the gradient times the lr "
            "of that step?",
        ),
    ):
        made = _made(layers, 0, number, [1.0, 0.1])
        _ask(answer, layers, made, [0, 4, 15], settings[:number], hint)


@LARS.check(
    "vectors, frozen layers, padding, layers at zero, a rank without elements", points=3, needs=("check_cuts",)
)  # fmt: skip
def check_corners(answer: Answer) -> None:
    """A frozen layer's gradient and the padding's may hold anything: here they are not numbers."""
    layers: Layers = [(4, "vector"), (6, "frozen"), (8, "matrix"), (5, "matrix"), (3, "frozen")]
    settings = [_settings(lr=0.3, momentum=0.9, decay=0.1, max_norm=1.0)] * 2
    hint = (
        "Is it a vector, which has neither ratio nor decay? Is a norm of it zero at first: what is its ratio then? And "
        "which layers are in the norm of all gradients?"
    )
    for cuts in ([0, 30], [0, 12, 12, 30], [0, 5, 20, 30, 30]):
        made = _made(layers, 4, 2, [1.0, 0.0, 1.0, 1.0, 0.0])
        made[0][10:18] = 0.0  # the first matrix starts at zero
        made[1][0][18:23] = 0.0  # the second one's first gradient is zero
        _ask(answer, layers, made, cuts, settings, hint)
    only: Layers = [(5, "vector"), (5, "matrix")]
    still = torch.ones(10, dtype=torch.double), [torch.zeros(10, dtype=torch.double)]
    _ask(answer, only, still, [0, 6, 10], [_settings(decay=0.1)], "All gradients are zero here.")


@LARS.check("one message: two numbers per matrix, and two more", points=3, needs=("check_cuts",))
def check_bytes(answer: Answer) -> None:
    """Counted message by message; frozen layers and vectors need no numbers of their own."""
    ranks, steps, matrices = 3, 2, 6
    layers: Layers = [(100, "matrix"), (10, "vector"), (30, "frozen")] * matrices
    made = _made(layers, 0, steps, [1.0, 1.0, 0.0] * matrices)
    run = _ask(
        answer, layers, made, [0, 250, 610, 840], [_settings()] * steps,
        "So it is where messages are counted, too.", backend="ring", record=True,
    )  # fmt: skip
    calls = run.traffic.calls(rank=0)
    require(
        calls == steps,
        f"{plural(calls, 'collective call')} in {steps} steps of {len(layers)} layers. Which numbers of all layers can "
        "travel together, those for clipping too?",
    )
    most = 16 * (matrices + 1) * (ranks - 1) * steps
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= most,
            f"Rank {rank} sends {sent:,} bytes in {steps} steps of {matrices} matrices, {matrices} vectors and "
            f"{matrices} frozen layers, and {most:,} are enough. What do the others need to know of its elements?",
        )
