"""The checks of lesson 08: rates in samples, a LARS step, clipping of replicated and sharded gradients, the noise scale."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. rates in samples -----------------------------------------------------------------------------------------

RATES = Exercise(
    "learning_rate",
    lesson="08",
    title="A schedule that counts samples",
    takes=("learning_rate",),
    target="300 rates to 1e-12 of their peak, for batches 1 to 40 times the small one",
)
Case = tuple[int, int, float, int, int, int]  # samples, batch, base_lr, base_batch, warmup, total


def _rates(learning_rate: Any, cases: list[Case]) -> list[Any]:
    return [learning_rate(*case) for case in cases]


def _refused_rates(learning_rate: Any, cases: list[Case]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {learning_rate(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


def _rate(
    samples: int, batch: int, base_lr: float, base_batch: int, warmup: int, total: int
) -> float:
    peak = base_lr * batch / base_batch
    if samples < warmup:
        return base_lr + (peak - base_lr) * samples / warmup
    done = min(1.0, (samples - warmup) / (total - warmup))
    return peak * (1 + math.cos(math.pi * done)) / 2


def _settings() -> tuple[int, float, int, int, int]:
    warmup = random.randrange(1_000, 50_000)
    base = random.choice([16, 32, 256])
    k = random.choice([1, 2, 8, 40])
    return base * k, 10 ** random.uniform(-3, 0), base, warmup, warmup * random.randrange(2, 30)


def _ask_rates(answer: Answer, cases: list[Case], hint: str) -> None:
    for case, got in zip(cases, answer.call(_rates, cases), strict=True):
        samples, batch, base_lr, base_batch, warmup, total = case
        right = _rate(*case)
        require(
            isinstance(got, (int, float))
            and math.isclose(
                got, right, rel_tol=1e-12, abs_tol=1e-12 * base_lr * batch / base_batch
            ),
            f"After {samples:,} of {total:,} samples (warm-up {warmup:,}) with a batch of {batch} where {base_lr:.3g} suits "
            f"{base_batch}: the rate is {right:.6g}, and yours is {got!r:.20}. {hint}",
        )


@RATES.check("the peak: linear in the batch", points=1)
def check_peak(answer: Answer) -> None:
    """At the end of the warm-up, and with none."""
    cases = []
    for _ in range(20):
        batch, lr, base, warmup, total = _settings()
        cases += [(warmup, batch, lr, base, warmup, total), (0, batch, lr, base, 0, total)]
    _ask_rates(
        answer,
        cases,
        "By what factor does the linear rule raise a rate when the batch grows k times?",
    )


@RATES.check("the warm-up: from the small batch's rate, counted in samples", points=2)
def check_warmup(answer: Answer) -> None:
    """Where it starts, and at points on the way."""
    cases, starts = [], []
    for _ in range(40):
        batch, lr, base, warmup, total = _settings()
        starts.append((0, batch, lr, base, warmup, total))
        cases.append((random.randrange(1, warmup), batch, lr, base, warmup, total))
    _ask_rates(
        answer,
        starts,
        "Which rate is safe at the very start: none at all, or the one that suits the small batch?",
    )
    _ask_rates(
        answer,
        cases,
        "Halfway through the warm-up's samples, whatever the batch, the rate is halfway up. What do you divide by?",
    )


@RATES.check("the cosine: from the peak to 0, and 0 beyond the end", points=2)
def check_cosine(answer: Answer) -> None:
    """After the warm-up, at the end and after it."""
    cases, after = [], []
    for _ in range(40):
        batch, lr, base, warmup, total = _settings()
        cases.append((random.randrange(warmup, total), batch, lr, base, warmup, total))
        after += [(total + extra, batch, lr, base, warmup, total) for extra in (0, batch, total)]
    _ask_rates(
        answer,
        cases,
        "The cosine begins where the warm-up ends: which share of *its* samples is done?",
    )
    _ask_rates(answer, after, "A cosine that goes on beyond its end comes up again.")


@RATES.check("what makes no sense is refused", points=1)
def check_refusals(answer: Answer) -> None:
    """ValueError: no samples in a batch, a warm-up that is not over before the end."""
    bad = [(0, 0, 0.1, 32, 10, 100), (0, 32, 0.1, 0, 10, 100), (0, 32, 0.1, 32, 100, 100)]
    for case, said in zip(bad, answer.call(_refused_rates, bad), strict=True):
        require(
            said == "ValueError",
            f"learning_rate{case} should raise a ValueError (a batch below 1, or a warm-up that is not shorter than the run); "
            f"yours {said}.",
        )


# --- 2. LARS -----------------------------------------------------------------------------------------------------

LARS = Exercise(
    "lars_step",
    lesson="08",
    title="LARS, one step",
    takes=("lars_step",),
    target="weights to 1e-12 over 4 steps with a changing rate; a step of lr * trust of a layer's length, for gradients of 1e-6 to 1e6",
)
Tensors = list[torch.Tensor]


def _steps(
    lars_step: Any, weights: Tensors, gradients: list[Tensors], settings: list[dict[str, float]]
) -> Tensors:
    velocities = [torch.zeros_like(w) for w in weights]
    with torch.no_grad():
        for g, options in zip(gradients, settings, strict=True):
            lars_step(weights, g, velocities, **options)
    return weights


def _lars(weights: Tensors, gradients: list[Tensors], settings: list[dict[str, float]]) -> Tensors:
    weights = [w.clone() for w in weights]
    velocities = [torch.zeros_like(w) for w in weights]
    for g_of, s in zip(gradients, settings, strict=True):
        for w, g, v in zip(weights, g_of, velocities, strict=True):
            rate = 1.0
            if w.dim() > 1:
                if w.norm() > 0 and g.norm() > 0:
                    rate = s["trust"] * (w.norm() / (g.norm() + s["decay"] * w.norm())).item()
                g = g + s["decay"] * w
            v.mul_(s["momentum"]).add_(g, alpha=s["lr"] * rate)
            w.sub_(v)
    return weights


def _layers(*shapes: tuple[int, ...]) -> Tensors:
    return [torch.randn(shape, dtype=torch.double) for shape in shapes]


def _ask_lars(
    answer: Answer,
    weights: Tensors,
    gradients: list[Tensors],
    settings: list[dict[str, float]],
    hints: list[str],
) -> None:
    right = _lars(weights, gradients, settings)
    got = answer.call(_steps, [w.clone() for w in weights], gradients, settings)
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        off = (mine - theirs).abs().max().item()
        require(
            off <= 1e-12 * (1 + theirs.abs().max().item()),
            f"After {len(settings)} step(s), the weights of layer {i}, shape {tuple(theirs.shape)}, are up to {off:.2g} off"
            + (" (not a number)" if math.isnan(off) else "")
            + f". {hints[i]}",
        )


@LARS.check("one step of two matrices: each has its own rate", points=2)
def check_one_step(answer: Answer) -> None:
    """No momentum yet, no decay; gradients a thousand times apart."""
    weights, gradients = _layers((4, 3), (5, 4)), _layers((4, 3), (5, 4))
    gradients[1] *= 1000
    settings = [{"lr": 2.0, "trust": 0.01, "momentum": 0.0, "decay": 0.0}]
    _ask_lars(
        answer,
        weights,
        [gradients],
        settings,
        ["Is the ratio |w| / |g| this layer's, or that of all layers?"] * 2,
    )
    for scale in (1e-6, 1e6):
        small = [g * scale for g in gradients]
        got = answer.call(_steps, [w.clone() for w in weights], [small], settings)
        for mine, w in zip(got, weights, strict=True):
            share = ((mine - w).norm() / w.norm()).item()
            require(
                math.isclose(share, 0.02, rel_tol=1e-3),
                f"With gradients times {scale:g}, lr 2 and trust 0.01 a layer should move by 0.02 of its length; yours moves by {share:.3g}.",
            )


@LARS.check("weight decay, in the ratio and in the step", points=2)
def check_decay(answer: Answer) -> None:
    """The denominator is |g| + decay |w|."""
    weights, gradients = _layers((4, 3)), _layers((4, 3))
    settings = [{"lr": 1.0, "trust": 0.1, "momentum": 0.0, "decay": 0.7}]
    _ask_lars(
        answer,
        weights,
        [gradients],
        settings,
        ["Look at the formula again: where does the decay appear? In two places."],
    )


@LARS.check("momentum over four steps, while the rate changes", points=2)
def check_momentum(answer: Answer) -> None:
    """The velocity holds the rate of its own time."""
    weights = _layers((3, 3))
    gradients = [_layers((3, 3)) for _ in range(4)]
    settings = [
        {"lr": lr, "trust": 0.05, "momentum": 0.9, "decay": 0.01} for lr in (1.0, 1.0, 0.1, 2.0)
    ]
    same = [{**s, "lr": 1.0} for s in settings]
    _ask_lars(
        answer, weights, gradients, same, ["Is the velocity kept from step to step, in place?"]
    )
    _ask_lars(
        answer, weights, gradients, settings,
        ["With a constant rate it is right. What goes into the velocity: the gradient, or the gradient times the rate of that step?"],
    )  # fmt: skip


@LARS.check("the corners: biases, and layers that are zero", points=2)
def check_corners(answer: Answer) -> None:
    """One-dimensional parameters: plain SGD with momentum, no decay. A norm of zero: the ratio is 1."""
    weights, gradients = (
        _layers((4,), (3, 2), (2, 2)),
        [_layers((4,), (3, 2), (2, 2)) for _ in range(2)],
    )
    weights[1].zero_()
    gradients[0][2].zero_()
    settings = [{"lr": 0.3, "trust": 0.01, "momentum": 0.9, "decay": 0.1}] * 2
    hints = [
        "It has one dimension, a bias: what does the text say about those?",
        "It starts at zero. With a ratio of zero it would stay there for ever.",
        "Its first gradient is zero: what is then its ratio?",
    ]
    _ask_lars(answer, weights, gradients, settings, hints)


# --- 3. clipping -------------------------------------------------------------------------------------------------

CLIP = Exercise(
    "clip_gradients",
    lesson="08",
    title="Clip what is spread over ranks",
    takes=("clip_gradients",),
    target="norm and gradients to 1e-12 of one process's on 1 to 4 ranks; at most 64 bytes sent by a rank",
)


def _clip(
    clip_gradients: Any, replicated: Tensors, sharded: list[Tensors], limits: list[float]
) -> Any:
    import torch.distributed as dist

    mine, found = sharded[dist.get_rank()], []
    for limit in limits:
        whole, parts = [g.clone() for g in replicated], [g.clone() for g in mine]
        norm = clip_gradients(whole, parts, limit)
        found.append((float(norm), whole, parts))
    return found


def _ask_clip(answer: Answer, ranks: int, replicated: Tensors, spread: Tensors, hint: str) -> None:
    """Tensor i of `spread` is cut over the ranks; a rank whose part is empty does not hold it at all."""
    sharded = [
        [p for p in (g.tensor_split(ranks)[r] for g in spread) if len(p)] for r in range(ranks)
    ]
    total = math.sqrt(sum(g.square().sum().item() for g in replicated + spread))
    limits = [total * 2, total / 3]
    run = answer.run(_clip, ranks, replicated, sharded, limits, timeout=8.0)
    for rank in range(ranks):
        for limit, (norm, whole, parts) in zip(limits, run[rank], strict=True):
            require(
                math.isclose(norm, total, rel_tol=1e-12),
                f"On {ranks} ranks the norm of all gradients is {total:.6g}, and rank {rank} says {norm:.6g}. {hint}",
            )
            factor = min(1.0, limit / total)
            what = "longer than" if factor < 1 else "within"
            for mine, theirs in zip(whole + parts, replicated + sharded[rank], strict=True):
                require(
                    torch.allclose(mine, factor * theirs, rtol=1e-9, atol=1e-12),
                    f"On {ranks} ranks the gradient is {what} the limit ({total:.4g} against {limit:.4g}), so all of it is to be "
                    f"multiplied by {factor:.4g}; on rank {rank} it is not. Is it scaled in place, and only when it is too long?",
                )


@CLIP.check("replicated gradients alone", points=1)
def check_clip_replicated(answer: Answer) -> None:
    """Every rank holds them whole; they count once."""
    gradients = [torch.randn(4, 3, dtype=torch.double), torch.randn(5, dtype=torch.double)]
    for ranks in (1, 3):
        _ask_clip(
            answer,
            ranks,
            gradients,
            [],
            "Replicated gradients are the same on all ranks: do they count once, or once a rank?",
        )


@CLIP.check("sharded gradients alone", points=2)
def check_clip_sharded(answer: Answer) -> None:
    """Each rank holds a part."""
    gradients = [torch.randn(12, 2, dtype=torch.double), 10 * torch.randn(7, dtype=torch.double)]
    for ranks in (2, 4):
        _ask_clip(
            answer,
            ranks,
            [],
            gradients,
            "Which part of |g|² does a rank know by itself, and who knows the rest?",
        )


@CLIP.check("both together, and a rank that holds no shard", points=2)
def check_clip_mixed(answer: Answer) -> None:
    """Two rows over three ranks: the last one has nothing, and must come to the all-reduce all the same."""
    replicated, spread = (
        [torch.randn(6, dtype=torch.double)],
        [torch.randn(2, 3, dtype=torch.double)],
    )
    _ask_clip(
        answer,
        3,
        replicated,
        spread,
        "Some squares are to be added over the ranks, and some are not. Which?",
    )


@CLIP.check("at most 64 bytes sent by each rank", points=1)
def check_clip_bytes(answer: Answer) -> None:
    """Counted message by message: one number is enough."""
    ranks, elements = 4, 4_000
    spread = [torch.randn(elements, dtype=torch.double) for _ in range(2)]
    sharded = [[g.tensor_split(ranks)[r] for g in spread] for r in range(ranks)]
    run = answer.run(_clip, ranks, [], sharded, [1.0], backend="ring", record=True)
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= 64,
            f"Rank {rank} sends {sent:,} bytes; the gradients it holds are {8 * elements // 2:,}. What is the least that the others "
            "need to know of them?",
        )


# --- 4. the noise scale ------------------------------------------------------------------------------------------

NOISE = Exercise(
    "noise_scale",
    lesson="08",
    title="The noise scale, from ranks' gradients",
    takes=("noise_scale",),
    target="the three numbers to 1e-9 on 2 and 3 ranks, the same on all; within 20% of the truth over 400 steps",
)


def _scale(noise_scale: Any, gradients: Tensors, batch: int) -> list[float]:
    import torch.distributed as dist

    return [float(x) for x in noise_scale(gradients[dist.get_rank()].clone(), batch)]


def _noise(gradients: Tensors, b: int) -> tuple[float, float, float]:
    stacked = torch.stack(gradients)  # rank, step, number
    big_b = b * len(gradients)
    small = stacked.square().sum(2).mean(0)
    big = stacked.mean(0).square().sum(1)
    signal = ((big_b * big - b * small) / (big_b - b)).mean().item()
    noise = ((small - big) / (1 / b - 1 / big_b)).mean().item()
    return signal, noise, noise / signal if signal > 0 else math.nan


def _draw(ranks: int, steps: int, n: int, b: int, true: float, noise: float) -> Tensors:
    """Gradients with |G| = true and tr(S) = noise, of batches of b."""
    g = torch.zeros(n, dtype=torch.double)
    g[0] = true
    return [
        g + torch.randn(steps, n, dtype=torch.double) * (noise / n / b) ** 0.5 for _ in range(ranks)
    ]


def _ask_noise(answer: Answer, gradients: Tensors, batch: int, hints: tuple[str, str, str]) -> None:
    right = _noise(gradients, batch)
    run = answer.run(_scale, len(gradients), gradients, batch)
    for rank, got in enumerate(run):
        require(
            len(got) == 3,
            f"noise_scale returns three numbers, |G|², tr Σ and their ratio; rank {rank} gave {len(got)}.",
        )
        for name, mine, theirs, hint in zip(
            ("|G|²", "tr Σ", "the noise scale"), got, right, hints, strict=True
        ):
            require(
                (math.isnan(mine) and math.isnan(theirs))
                or math.isclose(mine, theirs, rel_tol=1e-9),
                f"On {len(gradients)} ranks with {batch} samples each, rank {rank} finds {mine:.6g} for {name}; "
                f"by the two equations it is {theirs:.6g}. {hint}",
            )


_HINTS = (
    "Which batch has a rank's own gradient, and which the average? And |g_b|²: of one rank, or the mean over all?",
    "It is the difference of the two squared norms over the difference of 1/b and 1/B. Is B the samples of all ranks together?",
    "Both are noisy in a single step: average each over the steps, and divide at the end.",
)


@NOISE.check("one step, by the two equations", points=2)
def check_one_noise(answer: Answer) -> None:
    """On two and on three ranks."""
    for ranks in (2, 3):
        _ask_noise(answer, _draw(ranks, 1, 6, 4, 3.0, 2.0), 4, _HINTS)


@NOISE.check("many steps: a ratio of averages", points=2)
def check_many_noise(answer: Answer) -> None:
    """And near the truth, which the judge knows since it drew the gradients."""
    gradients = _draw(3, 400, 20, 8, 1.0, 24.0)
    _ask_noise(answer, gradients, 8, _HINTS)
    found = answer.run(_scale, 3, gradients, 8)[0][2]
    require(abs(found / 24 - 1) < 0.2 or abs(_noise(gradients, 8)[2] / 24 - 1) > 0.2,
            f"The gradients were drawn with a noise scale of 24; you find {found:.3g}.")  # fmt: skip


@NOISE.check("nothing but noise: no number", points=1)
def check_all_noise(answer: Answer) -> None:
    """Where the estimate of |G|² is not above 0, the scale is NaN."""
    own = torch.randn(1, 5, dtype=torch.double)
    _ask_noise(
        answer,
        [own, -own],
        4,
        (*_HINTS[:2], "|G|² came out below 0: there is no signal to compare with. Say math.nan."),
    )
