"""The log of a run in 16 bits: what is wrong with its numbers, and from which step on?"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_numbers",
    lesson="14b",
    title="What is wrong with this run's numbers?",
    takes=("diagnose_numbers",),
    target="18 of 18 runs of 40 steps, drawn anew for each check",
)

Log = list[dict[str, float]]
STEPS, LIMIT, LR, INTERVAL = 40, 1.0, 0.03, 9
_TINY = 2.0**-10  # a scale at which most gradients vanish


def run_of(kind: str) -> tuple[tuple[Log], tuple[str, int | None]]:
    """A run with that mistake from a step that is drawn on; "low" is a healthy one with a small scale."""
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # so small are the products that threads would only wait for each other
    try:
        while True:
            where = random.randrange(14, 30)
            log = _trained(kind, where)
            # A step that is skipped shows no mistake, so the mistake begins in one that is taken.
            if math.isfinite(log[where]["norm"]):
                return (log,), ("healthy", None) if kind in ("healthy", "low") else (kind, where)
    finally:
        torch.set_num_threads(threads)


def _trained(kind: str, where: int) -> Log:
    teacher, weights = torch.randn(32, 8), [torch.randn(32, 48) / 6, torch.randn(48, 8) / 7]
    # The smaller the loss's own factor, the larger a scale its gradients bear.
    factor = 1.0 if kind == "low" else 2.0**-8
    scale, good, spike, log = 2.0**5 if kind == "low" else 2.0**27, 0, random.randrange(6, 12), []
    for step in range(STEPS):
        x = torch.randn(256, 32) * (6.0 if step == spike else 1.0)
        leaves = [w.clone().requires_grad_() for w in weights]
        loss = factor * F.cross_entropy(
            torch.relu(x @ leaves[0]) @ leaves[1], (x @ teacher).argmax(1)
        )
        wrong = kind not in ("healthy", "low") and step >= where
        if kind == "lost gradients" and step == where:
            scale = _TINY
        gradients = [g.half() for g in torch.autograd.grad(loss * scale, leaves)]
        zeros = torch.cat([(g == 0).flatten() for g in gradients]).double().mean().item()
        sums = [
            g.float() / (1.0 if kind == "clipped while scaled" and wrong else scale)
            for g in gradients
        ]
        norm = torch.cat([g.flatten() for g in sums]).norm().item()
        fine, moved = math.isfinite(norm), 0.0
        if fine:
            shrink = min(1.0, LIMIT * factor / norm) / factor
            left = 1 / scale if kind == "clipped while scaled" and wrong else 1.0
            new = [w - LR * shrink * left * g for w, g in zip(weights, sums, strict=True)]
            if kind == "no masters" and wrong:
                # The weights have 16 bits themselves: what is updated is what was rounded.
                weights = [w.bfloat16().float() for w in weights]
                new = [
                    (w - LR * shrink * g).bfloat16().float()
                    for w, g in zip(weights, sums, strict=True)
                ]
            pairs = zip(weights, new, strict=True)
            moved = torch.cat([(a != b).flatten() for a, b in pairs]).double().mean().item()
            weights = new
        log.append(
            {
                "loss": loss.item() / factor,
                "scale": scale,
                "norm": norm / factor,
                "zeros": zeros,
                "moved": moved,
            }
        )
        good = good + 1 if fine else 0
        if not fine:
            scale /= 2
        elif good == INTERVAL:
            scale, good = (scale if kind == "lost gradients" and wrong else scale * 2), 0
    return log


def _require(answer: Answer, kind: str, hint: str) -> None:
    cases = [run_of("healthy"), run_of("low"), *(run_of(kind) for _ in range(4))]
    require_diagnoses(
        answer,
        cases,
        describe=_described,
        hint=hint,
        healthy="A skipped step moves nothing, one batch may have a large gradient, and a small scale is no fault by "
        "itself: what stays wrong from some step on?",
        example=("no masters", 17),
        shuffled=True,
    )


def _described(log: Any) -> str:
    return f"A run whose loss goes from {log[0]['loss']:.2f} to {log[-1]['loss']:.2f}"


@DIAGNOSE.check("weights that have 16 bits", points=3)
def check_no_masters(answer: Answer) -> None:
    """Updates that round away."""
    _require(
        answer,
        "no masters",
        "Gradients and norms are as before. Which number says that they reach fewer weights, and from which step on?",
    )


@DIAGNOSE.check("gradients that vanish", points=3)
def check_lost(answer: Answer) -> None:
    """A scale so small that gradients round to 0."""
    _require(
        answer,
        "lost gradients",
        "Fewer weights move here, too. Do their gradients exist?",
    )


@DIAGNOSE.check("gradients that were clipped while scaled", points=3)
def check_clipped(answer: Answer) -> None:
    """The norm of scaled gradients."""
    _require(
        answer,
        "clipped while scaled",
        "How large is the norm in a healthy step, and what is it multiplied by here?",
    )
