"""MFU and HFU of a model that is cut over ranks, with checkpoints, from its shape and from the times of its steps."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

from dtcourse.course.judging import Answer, Exercise, call_each, require

UTILISATION = Exercise(
    "utilisation",
    lesson="23b",
    title="MFU and HFU of a model with checkpoints, on several ranks",
    takes=("utilisation",),
    target="both to 1e-9, for 18 jobs that are drawn anew",
    forbidden=("dtcourse.profiling", "dtcourse.models", "torch.utils.flop_counter"),
)

WIDTHS = (64, 96, 128, 256)


@dataclass(frozen=True)
class Shape:
    """A Transformer of SwiGLU and grouped-query attention, and its batch. See the exercise's text."""

    batch: int
    length: int
    width: int
    layers: int
    hidden: int
    kv_width: int
    vocab: int

    @property
    def tokens(self) -> int:
        """In a step."""
        return self.batch * self.length

    def block(self) -> int:
        """FLOPs of a block's forward."""
        weights = 2 * self.width**2 + 2 * self.width * self.kv_width + 3 * self.width * self.hidden
        return self.tokens * (2 * weights + 4 * self.length * self.width)

    def last(self) -> int:
        """Of its last product."""
        return 2 * self.tokens * self.width * self.hidden

    def head(self) -> int:
        """Of the output layer's forward."""
        return 2 * self.tokens * self.width * self.vocab

    def needed(self) -> int:
        """Of a step."""
        return 3 * (self.layers * self.block() + self.head())

    def executed(self, checkpointed: int) -> int:
        """Of a step with so many blocks behind a checkpoint."""
        return self.needed() + checkpointed * (self.block() - self.last())


Job = tuple[dict[str, int], int, int, list[list[float]], float]


def step_seconds(seconds: list[list[float]]) -> float:
    """The slowest rank of each step, then the mean, without the first step."""
    steps = [max(of_step) for of_step in zip(*seconds, strict=True)][1:]
    return sum(steps) / len(steps)


def drawn(*, checkpoints: bool, uneven: bool) -> Job:
    """A job: its shape, ranks, blocks behind a checkpoint, seconds of each rank's steps, and a card's peak."""
    width = random.choice(WIDTHS)
    shape = Shape(
        batch=random.choice((2, 4, 8)),
        length=random.choice((128, 512, 2048)),
        width=width,
        layers=random.randint(4, 12),
        hidden=random.choice((2, 3, 4)) * width,
        kv_width=width // random.choice((2, 4)),
        vocab=random.choice((1_000, 4_096)),
    )
    ranks = random.choice((2, 4, 8))
    checkpointed = random.randint(2, shape.layers - 1) if checkpoints else 0
    peak = random.uniform(1e12, 1e13)
    least = shape.executed(checkpointed) / ranks / peak * random.uniform(1.5, 3.0)
    steps = 6
    seconds = [[least] * steps for _ in range(ranks)]
    if uneven:
        for step in range(
            steps
        ):  # another rank is late each time, and the first step is unlike the others
            seconds[step % ranks][step] *= random.uniform(1.2, 1.6)
        for of_rank in seconds:
            of_rank[0] *= 3
    return asdict(shape), ranks, checkpointed, seconds, peak


def right(job: Job) -> tuple[float, float]:
    """MFU and HFU."""
    fields, ranks, checkpointed, seconds, peak = job
    shape, at_peak = Shape(**fields), step_seconds(seconds) * ranks * peak
    return shape.needed() / at_peak, shape.executed(checkpointed) / at_peak


def _likely(job: Job, got: tuple[float, float]) -> str:
    """What a wrong answer has probably left out, or put in."""
    fields, ranks, checkpointed, seconds, _ = job
    shape, (mfu, hfu) = Shape(**fields), right(job)
    steps = list(zip(*seconds, strict=True))
    needed, executed = shape.needed(), shape.executed(checkpointed)
    scores = 12 * shape.layers * shape.tokens * shape.length * shape.width
    full_keys = (
        3 * 2 * shape.tokens * shape.layers * 2 * shape.width * (shape.width - shape.kv_width)
    )
    of_mfu = {
        "How many ranks share the work, and whose peak is it?": (ranks, 1 / ranks),
        "What of the step is backward?": (1 / 3,),
        "Attention multiplies more than weights.": (1 - scores / needed, 1 - scores / 2 / needed),
        "The output layer is a product, too.": (1 - 3 * shape.head() / needed,),
        "How wide are keys and values here?": (1 + full_keys / needed,),
        "How many matrices has this MLP?": (
            1 - 6 * shape.tokens * shape.layers * shape.width * shape.hidden / needed,
        ),
        "Is what runs a second time needed by the model?": (executed / needed,),
    }  # fmt: skip
    of_time = {
        "Do the others not wait for the rank that is late, and is it always the same one?": (
            sum(map(sum, seconds)) / ranks / len(steps),
            sum(map(sum, (one[1:] for one in seconds))) / ranks / (len(steps) - 1),
            max(sum(one[1:]) / len(one[1:]) for one in seconds),
        ),
        "Is the first step like the others?": (sum(map(max, steps)) / len(steps),),
    }
    for sentence, times in of_time.items():
        of_mfu[sentence] = tuple(step_seconds(seconds) / one for one in times)
    for sentence, factors in of_mfu.items():
        if any(abs(got[0] / mfu - factor) < 1e-6 and abs(factor - 1) > 1e-6 for factor in factors):
            return sentence
    repeats = {
        "What is computed twice?": needed,
        "Which product of a block does the checkpoint not repeat?": needed
        + checkpointed * shape.block(),
        "How many of the blocks are behind a checkpoint?": needed
        + shape.layers * (shape.block() - shape.last()),
    }
    for sentence, flops in repeats.items():
        if abs(got[1] / hfu - flops / executed) < 1e-6:
            return sentence
    return "Which products has a step, and how often does each of them run?"


def _require(answer: Answer, jobs: list[Job]) -> None:
    for job, got in zip(jobs, call_each(answer, jobs), strict=True):
        shape, ranks, checkpointed, *_ = job
        where = f"A model of {shape} on {ranks} ranks, {checkpointed} blocks behind a checkpoint"
        require(
            isinstance(got, (list, tuple))
            and len(got) == 2
            and all(isinstance(one, (int, float)) and one > 0 for one in got),
            f"{where}: return two numbers above 0, MFU and HFU; got {got!r}.",
        )
        wanted = right(job)
        if max(abs(a / b - 1) for a, b in zip(got, wanted, strict=True)) > 1e-9:
            require(
                False,
                f"{where}: MFU {wanted[0]:.6f} and HFU {wanted[1]:.6f}; got {got[0]:.6f} and {got[1]:.6f}. "
                f"{_likely(job, (got[0], got[1]))}",
            )


@UTILISATION.check("what the model needs", points=3)
def check_needed(answer: Answer) -> None:
    """No checkpoints, and all steps alike."""
    _require(answer, [drawn(checkpoints=False, uneven=False) for _ in range(6)])


@UTILISATION.check("what is executed", points=3)
def check_executed(answer: Answer) -> None:
    """Some blocks are behind a checkpoint."""
    _require(answer, [drawn(checkpoints=True, uneven=False) for _ in range(6)])


@UTILISATION.check("how long a step takes", points=2)
def check_seconds(answer: Answer) -> None:
    """In each step another rank is late, and the first step is unlike the others."""
    _require(answer, [drawn(checkpoints=True, uneven=True) for _ in range(6)])
