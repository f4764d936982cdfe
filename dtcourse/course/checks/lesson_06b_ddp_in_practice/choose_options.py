"""What DDP is told, and how a step is cut: steps run on the emulated clock, and their gradients are looked at."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_options",
    lesson="06b",
    title="Choose what DDP is told",
    takes=("choose_options",),
    launches=True,
    target="in 4 jobs, run on the emulated clock, at most 1.01 times the time of the best choice that fits and trains "
    "rightly; at most 8 of 36 choices tried",
    forbidden=(
        "dtcourse.data_parallel",
        "dtcourse.parameters",
        "dtcourse.emulation",
        "dtcourse.simulator",
    ),
)

RANKS, SAMPLES, LAYERS, MOST = 3, 8, 6, 8
NUMBERS = 96  # of each layer's gradient: a ring of three ranks cuts any bucket into equal blocks
OPTIONS = ("none", "static_graph", "find_unused_parameters")
CHOICES: list[trials.Choice] = [
    (micro, bucket, option) for micro in (2, 4, 8) for bucket in (1, 2, 3, 6) for option in OPTIONS
]
# Seconds: of a layer's launch, of a sample in it, a message's latency, a layer's bytes.
Job = tuple[float, float, float, float]
FAST: Job = (0.2e-3, 0.3e-3, 0.05e-3, 3e-3)
SLOW: Job = (0.2e-3, 0.2e-3, 2e-3, 1e-3)
# Whether the last layer is used, in each step.
Uses = tuple[bool, bool, bool]
ALWAYS: Uses = (True, True, True)
NEVER: Uses = (False, False, False)
COMES: Uses = (False, True, True)
GOES: Uses = (True, False, False)
# With each, how many samples' activations fit.
Asked = tuple[Job, Uses, int]
ALL_USED: tuple[Asked, ...] = ((SLOW, ALWAYS, 8),)
UNUSED: tuple[Asked, ...] = ((FAST, NEVER, 4),)
CHANGING: tuple[Asked, ...] = ((FAST, COMES, 4), (SLOW, GOES, 2))


def steps(choice: tuple[int, int, str], job: Job, uses: Uses) -> tuple[float, float, float]:
    """On each rank, of three steps of DDP: seconds, the most samples held, the gradients' error (inf: DDP raised)."""
    import torch
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.data_parallel import DistributedDataParallel

    micro, bucket, option = choice
    launch, sample, _, _ = job

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            emulation.sleep(launch + micro * sample)
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            emulation.sleep(2 * (launch + micro * sample))
            return gradient, gradient.mean().expand(NUMBERS).clone()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros(NUMBERS) for _ in range(LAYERS))

        def forward(self, x: Any, used: bool) -> Any:
            for weight in list(self.weights)[: None if used else -1]:
                x = Layer.apply(x, weight)
            return x

    told: dict[str, Any] = {} if option == "none" else {option: True}
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=bucket * NUMBERS * 4 / 2**20, **told)
    mean, error = (RANKS + 1) / 2, 0.0
    start = trials.begin_together()
    try:
        for used in uses:
            for weight in net.weights:
                weight.grad = None
            for left in range(SAMPLES - micro, -1, -micro):
                with model.no_sync() if left else torch.enable_grad():
                    x = torch.full((1,), 1.0, requires_grad=True)
                    loss = (dist.get_rank() + 1) * micro / SAMPLES * model(x, used).sum()
                    loss.backward()
            for weight in list(net.weights)[: None if used else -1]:
                error = max(error, abs(weight.grad[0].item() / mean - 1))
    except RuntimeError:
        error = math.inf
    return emulation.now() - start, float(micro), error


def case(job: Job, uses: Uses, room: int) -> trials.Case:
    """A job, as an answer gets it."""
    *_, latency, nbytes = job
    network = {"network": EmulatedNetwork(latency, 4 * NUMBERS / nbytes)}
    return trials.Case(steps, RANKS, CHOICES, (job, uses), (room,), MOST, network)


PRACTICE = case(*ALL_USED[0])


@cache
def best(job: Job, uses: Uses, room: int) -> tuple[float, trials.Choice]:
    """The shortest time of what fits and trains rightly, and its choice: all are run."""
    return min(
        (seconds, choice)
        for choice, (seconds, held, error) in case(job, uses, room).search().items()
        if held <= room and error < 1e-5
    )


def _require(answer: Answer, asked: tuple[Asked, ...], hint: str) -> None:
    for job, uses, room in asked:
        launch, sample, latency, nbytes = (f"{1e3 * seconds:g}" for seconds in job)
        where = (
            f"room for {plural(room, 'sample')}; ms: {launch} per launch of a layer, {sample} per sample, {latency} of "
            f"latency, {nbytes} for a layer's bytes"
        )
        tried = case(job, uses, room).tried(answer)
        seconds, held, error = trials.require_possible(
            where,
            tried,
            (4, 2, "none"),
            'Micro-batches of 2, 4 or 8 samples, buckets of 1, 2, 3 or 6 layers, and "none", "static_graph" or '
            '"find_unused_parameters".',
        )
        require(
            held <= room,
            f"{where}: with {tried.choice!r} activations of {held:.0f} samples are held at once.",
        )
        require(
            error < 1e-5,
            f"{where}: with {tried.choice!r} DDP raises an error or leaves a gradient that is not the mean. Which "
            "layers does each of the steps use, and what has DDP been told of it?",
        )
        least, _ = best(job, uses, room)
        require_near_best(where, tried.choice, 1e3 * seconds, 1e3 * least, "ms", hint)


@CHOOSE.check("where all layers are used", points=2)
def check_all_used(answer: Answer) -> None:
    """Nothing need be promised, and nothing sought."""
    _require(
        answer,
        ALL_USED,
        "What does each option send that nobody needs here, and what does a larger micro-batch or bucket save?",
    )


@CHOOSE.check("where a layer is never used", points=3)
def check_unused(answer: Answer) -> None:
    """All steps are alike."""
    _require(
        answer,
        UNUSED,
        "What does each option send in the second and the third step? And is the bucket right for this network?",
    )


@CHOOSE.check("where steps differ", points=3)
def check_changing(answer: Answer) -> None:
    """A layer comes, or goes."""
    _require(
        answer,
        CHANGING,
        "Which options train rightly in all three steps? And is the bucket right for this network?",
    )
