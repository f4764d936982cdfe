"""How long 1-bit Adam's warm-up is, with which epsilon and learning rate, for links and a loss to reach. Run."""

from __future__ import annotations

import math
import random
from functools import cache
from itertools import islice, product

import torch
import torch.nn.functional as F

from dtcourse.course.judging import Answer, Exercise
from dtcourse.course.judging.simulated import Simulated, require_near_best_of
from dtcourse.course.judging.trials import Choice
from dtcourse.course.replicas import Digits, Replicas

CHOOSE = Exercise(
    "choose_warm_up",
    lesson="11b",
    title="Choose the warm-up",
    takes=("choose_warm_up",),
    target="on 4 links at most 1.01 times the best choice's time, measured; at most 24 of 60 choices tried",
)

P, STEPS, BATCH = 4, 150, 16
SIZES = (64, 10)  # softmax regression: 650 numbers
WARM_UPS, EPSILONS, RATES = (2, 5, 10, 20, 40), (1e-8, 1e-4, 1e-2), (0.04, 0.08, 0.16, 0.32)
CHOICES: list[Choice] = [(w, eps, lr) for w in WARM_UPS for eps in EPSILONS for lr in RATES]
MIDDLE = WARM_UPS[2]
MOST = 24  # choices that an answer may try

Link = tuple[float, float]  # seconds of latency, bytes per second
# Seconds of sending in a step of the warm-up, and in one of one bit; tests/course/test_choose_warm_up.py finds them by
# running both on four emulated ranks.
SENDING: dict[Link, tuple[float, float]] = {
    (1e-4, 5e4): (0.07884, 0.0036),
    (1e-4, 2.5e5): (0.016248, 0.0012),
    (1e-4, 1e6): (0.004512, 0.00075),
    (1e-4, 2e7): (0.0007956, 0.0006075),
}
Job = tuple[float, Link, float]  # seconds of computing, the link, and the loss to reach
# On each link, which warm-ups may be the best one: the shortest where it is slow, and none that is known beforehand.
SLOW, FAST = (
    {(1e-4, 5e4): (2,), (1e-4, 2.5e5): (5, 10, 20)},
    {(1e-4, 1e6): (10, 20), (1e-4, 2e7): (20,)},
)
CLEAR = 1.015  # times the best choice's seconds: all others take more


@cache
def losses(warm_up: int) -> dict[tuple[float, float], list[float]]:
    """{(epsilon, learning rate): on images held out, after each step of four replicas in one process}.

    All of them at once, C of them: a step of all twelve takes as long as four steps of one.
    """
    model, digits = Replicas(SIZES), Digits.drawn(600, 0, torch.float64)
    pairs = list(product(EPSILONS, RATES))
    eps, lr = torch.tensor(pairs, dtype=torch.float64).T.unsqueeze(2)
    w_CN = model.start(0, torch.float64).repeat(len(pairs), 1)
    pools, tensors = digits.pools(1, by_class=False).expand(P, -1), [64 * 10, 10]
    m, v, left = torch.zeros_like(w_CN), torch.zeros_like(w_CN), w_CN.new_zeros(len(pairs), P, 650)
    found = []
    rest = torch.cat([digits.x_rest, digits.x_rest.new_ones(len(digits.x_rest), 1)], dim=1)
    own = F.one_hot(digits.y_rest).to(rest).T @ rest / len(rest)
    for step, chosen in enumerate(islice(digits.batches(pools, BATCH, 1), STEPS), 1):
        x = digits.x[chosen].repeat(len(pairs), 1, 1)
        y = digits.y[chosen].repeat(len(pairs), 1)
        G_CPN = model.gradients(w_CN.repeat_interleave(P, 0), x, y)[0].view_as(left)
        if step <= warm_up:
            g = G_CPN.mean(1)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.square()
        else:
            # Each rank's momentum, with a scale per tensor, and what is left out of it.
            wanted = 0.9 * m.unsqueeze(1) + 0.1 * G_CPN + left
            parts = wanted.split(tensors, dim=2)
            sent = torch.cat([one.abs().mean(2, keepdim=True) * one.sign() for one in parts], dim=2)
            left, m = wanted - sent, sent.mean(1)
        root = (v / (1 - 0.999 ** min(step, warm_up))).sqrt()
        w_CN = w_CN - lr * m / (1 - 0.9**step) / (root + eps)
        found.append(_losses_on(w_CN, rest, own))
    return dict(zip(pairs, torch.stack(found, dim=1).tolist(), strict=True))


def _losses_on(w_CN: torch.Tensor, rest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """(C,): the mean cross-entropy on all images at once, since most of the time goes here.

    rest: the images, with a 1 behind each; own: (classes, 65), the sum of each class's, over the number of all
    """
    W = torch.cat([w_CN[:, :640].view(-1, 10, 64), w_CN[:, 640:].unsqueeze(2)], dim=2)
    logits = (W.flatten(0, 1) @ rest.T).view(len(W), 10, -1)
    return logits.logsumexp(1).mean(1) - (W * own).sum((1, 2))


def steps_to(curve: list[float], target: float) -> int | None:
    """From which step on the loss is at most the target; None where it is not at the end."""
    if not curve[-1] <= target:
        return None
    above = [step for step, loss in enumerate(curve, 1) if not loss <= target]
    return 1 + max(above, default=0)


def run(choice: Choice, whole: float, one_bit: float, target: float) -> tuple[float]:
    """Seconds until the loss is at most the target, and stays so. whole, one_bit: seconds of a step."""
    warm_up, *pair = choice
    needed = steps_to(losses(warm_up)[tuple(pair)], target)
    if needed is None:
        return (math.inf,)
    warm = min(needed, warm_up)
    return (warm * whole + (needed - warm) * one_bit,)


def step_seconds(compute: float) -> tuple[float, float]:
    """On a rank of an emulated cluster: seconds of a step that averages whole numbers, and of one in one bit."""
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.compression import Residuals, ScaledSign, average
    from dtcourse.course.judging.trials import begin_together

    start = begin_together()
    emulation.sleep(compute)
    dist.all_reduce(torch.zeros(650))
    whole = emulation.now() - start
    start = begin_together()
    emulation.sleep(compute)
    average(torch.ones(650), ScaledSign(), residuals=Residuals())
    return whole, emulation.now() - start


def case(job: Job) -> Simulated:
    """Links and a target, as an answer gets them."""
    compute, link, target = job
    whole, one_bit = SENDING[link]
    given = (compute + whole, compute + one_bit, target)
    return Simulated(run, CHOICES, given, (WARM_UPS, EPSILONS, RATES), MOST, beforehand=True)


def drawn(links: dict[Link, tuple[int, ...]]) -> list[Job]:
    """A job on each of the links, of which a search can find the best choice.

    That is clearly the best, and with the warm-up in the middle its epsilon and learning rate are among the best three;
    on links that are fast not the best, so that who tries no other learning rate misses it.
    """
    found = []
    for link, best in links.items():
        while True:
            job = random.uniform(2e-3, 1e-2), link, random.uniform(0.15, 0.6)
            seconds = {choice: taken for choice, (taken,) in case(job).search().items()}
            first, second = sorted(seconds, key=seconds.__getitem__)[:2]
            at_middle = sorted((s, pair) for (w, *pair), s in seconds.items() if w == MIDDLE)
            place = [pair for _, pair in at_middle].index(list(first[1:]))
            wanted = (1, 2) if links is FAST and best == (20,) else (0, 1, 2)
            clear = seconds[second] > CLEAR * seconds[first] < math.inf
            if clear and first[0] in best and place in wanted:
                found.append(job)
                break
    return found


PRACTICE = case((5e-3, (1e-4, 5e4), 0.25))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        compute, (latency, bandwidth), target = job
        where = (
            f"{compute * 1e3:.3g} ms of computing, {latency * 1e3:g} ms per message, {bandwidth:,.0f} bytes per "
            f"second, to a loss of {target:.3g}"
        )
        links = case(job)
        require_near_best_of(
            links.best(),
            answer,
            links,
            where,
            f"Possible are {WARM_UPS}, with one of {EPSILONS} and one of {RATES}.",
            hint,
        )


@CHOOSE.check("on slow links", points=5)
def check_slow(answer: Answer) -> None:
    """A step of the warm-up takes many times as long as one in one bit."""
    _require(
        answer,
        drawn(SLOW),
        "How many steps in one bit does a step of the warm-up cost here? Was a short warm-up measured with an epsilon "
        "that its squares bear, and at a learning rate of its own?",
    )


@CHOOSE.check("on fast links", points=5)
def check_fast(answer: Answer) -> None:
    """Both kinds of steps take nearly as long."""
    _require(
        answer,
        drawn(FAST),
        "What does a longer warm-up save in steps, where it costs little? Was the warm-up on each side of yours "
        "measured, each at a learning rate of its own?",
    )
