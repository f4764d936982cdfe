"""One bit per number and step: what is kept, where momentum stands, and with which learning rate."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.threads import one_thread
from dtcourse.course.replicas import Digits, Replicas

ONE_BIT = Exercise(
    "one_bit_that_arrives",
    lesson="11b",
    title="One bit that arrives",
    takes=("OneBit",),
    target="a held-out loss of at most 0.4 after 160 steps, the mean of six seeds, with one bit per number and step",
    forbidden=("dtcourse.compression", "dtcourse.course.compressed_replicas"),
)

P, STEPS, LOOK, TARGET = 4, 160, 40, 0.4
SEEDS = range(6)
BATCHES = 400  # of the counterexample's gradients


def _exchanged(ranks: list[Any], G_PN: Tensor) -> tuple[Tensor, str]:
    """The step that the ranks take, (N,), and what is wrong with its form."""
    sent = [rank.send(g.clone()) for rank, g in zip(ranks, G_PN, strict=True)]
    for one in sent:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            return G_PN[0], f"send returns (signs, scale); got {type(one).__name__}."
        signs, scale = one
        if (
            not isinstance(signs, Tensor)
            or signs.dtype != torch.bool
            or signs.shape != G_PN[0].shape
        ):
            what = (
                f"{tuple(signs.shape)} of {signs.dtype}"
                if isinstance(signs, Tensor)
                else repr(signs)
            )
            return G_PN[
                0
            ], f"signs are one bit per number: ({len(G_PN[0])},) of torch.bool; got {what}."
        if torch.as_tensor(scale).numel() != 1:
            return G_PN[0], f"a rank sends one scale; got {torch.as_tensor(scale).numel()} numbers."
    signs = torch.stack([one[0] for one in sent])
    scales = torch.stack([torch.as_tensor(one[1], dtype=torch.float32).reshape(()) for one in sent])
    steps = [rank.receive(signs.clone(), scales.clone()) for rank in ranks]
    for number, step in enumerate(steps):
        if not isinstance(step, Tensor) or step.shape != G_PN[0].shape:
            return G_PN[0], f"receive returns what is taken from the weights, ({len(G_PN[0])},)."
        if not torch.allclose(step, steps[0], rtol=1e-5, atol=1e-8):
            return G_PN[0], (
                f"rank {number} takes another step than rank 0 from the same messages: the ranks' weights part. "
                "What does receive use that is not the same on all ranks?"
            )
    return steps[0].detach(), ""


def _trained(make: Any, seed: int) -> dict[str, Any]:
    """Losses on images held out, at LOOK, 2 LOOK, ... steps; or what is wrong with the form of an answer."""
    with one_thread():
        model, digits = Replicas((64, 64, 64, 10)), Digits.drawn(600, seed)
        w, pools = model.start(seed), digits.pools(1, by_class=False).expand(P, -1)
        ranks, losses = [make(len(w), P) for _ in range(P)], []
        for step, chosen in enumerate(islice(digits.batches(pools, 8, seed + 1), STEPS), 1):
            G, _ = model.gradients(w.expand(P, -1), digits.x[chosen], digits.y[chosen])
            update, wrong = _exchanged(ranks, G)
            if wrong:
                return {"wrong": wrong, "losses": []}
            w = w - update
            if step % LOOK == 0:
                losses.append(model.losses_on(w[None], digits.x_rest, digits.y_rest).item())
        return {"wrong": "", "losses": losses}


def _moved(make: Any, gradients: Tensor) -> dict[str, Any]:
    """How far each number has moved; gradients (batches, n) come one after another, the same on all ranks."""
    with one_thread():
        ranks, total = (
            [make(gradients.shape[1], P) for _ in range(P)],
            torch.zeros_like(gradients[0]),
        )
        for g in gradients:
            update, wrong = _exchanged(ranks, g.expand(P, -1))
            if wrong:
                return {"wrong": wrong, "moved": total}
            total = total + update
        return {"wrong": "", "moved": total}


def counterexample(draw: random.Random) -> Tensor:
    """(BATCHES, 24): numbers of several sizes whose sign is that of the mean in one batch of four, each in its own."""
    sizes = torch.tensor([draw.uniform(0.5, 1.5) * draw.choice((-1, 1)) for _ in range(24)])
    turns = torch.arange(BATCHES)[:, None] + torch.arange(24)
    return torch.where(turns % 4 == 0, 4.0, -1.0) * sizes


@ONE_BIT.check("what a sign leaves out is sent later", points=4)
def check_arrives(answer: Answer) -> None:
    """4, -1, -1, -1: the signs alone go the wrong way."""
    gradients = counterexample(random.Random())
    got = answer.call(_moved, gradients)
    require(not got["wrong"], got["wrong"])
    cosine = torch.nn.functional.cosine_similarity(got["moved"], gradients.sum(0), dim=0).item()
    require(
        cosine > 0.95,
        f"{P} ranks have the same gradients, {BATCHES} times; each number is 4 c in one batch of four and -c in the "
        f"others. The weights move in a direction whose cosine with the sum of the gradients is {cosine:.2f}, not 1. "
        "What has a rank kept of a sum of which it has sent a sign?",
    )


@ONE_BIT.check("training gets there", points=6, needs=("check_arrives",))
def check_training(answer: Answer) -> None:
    """On digits."""
    runs = [answer.call(_trained, seed) for seed in SEEDS]
    for run in runs:
        require(not run["wrong"], run["wrong"])
    looks = [
        sum(losses) / len(SEEDS) for losses in zip(*(run["losses"] for run in runs), strict=True)
    ]
    said = ", ".join(f"{loss:.2f} after {LOOK * number}" for number, loss in enumerate(looks, 1))
    require(
        looks[-1] <= TARGET,
        f"The mean loss of {len(SEEDS)} seeds is {said} steps; it is to be at most {TARGET}. What a residual sends "
        "late, momentum that comes after it pushes for ten steps more. Where does momentum stand, and which learning "
        "rate goes with that place?",
    )
