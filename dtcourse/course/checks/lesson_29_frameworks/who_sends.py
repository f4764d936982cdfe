"""The bytes that each rank sends in a step under PyTorch's wrappers: predicted, and counted on ranks."""

from __future__ import annotations

from dtcourse.course.checks.lesson_29_frameworks.counted_steps import Job, sent_by_this_rank
from dtcourse.course.judging import Answer, Exercise, call_each, number, own_ranks, require

WHO = Exercise(
    "who_sends",
    lesson="29",
    title="Who sends what?",
    takes=("who_sends",),
    launches=True,
    target="for 12 jobs on 2, 3 and 4 ranks, every rank's bytes within 2 percent of what is counted",
    forbidden=("dtcourse", "torch"),
)

NEAR = 0.02
REPLICAS: tuple[Job, ...] = (
    ("ddp", (240, 120, 60), 24, 2),
    ("ddp", (60, 240, 120, 60), 24, 3),
    ("ddp", (120, 120, 120), 48, 4),
)
SHARDS: tuple[Job, ...] = (
    ("fully_shard", (240, 120, 60), 24, 2),
    ("fully_shard, not resharded", (240, 120, 60), 24, 3),
    ("fully_shard", (120, 10, 25), 24, 4),
    ("fully_shard, not resharded", (90, 5, 31), 24, 4),
)
CUTS: tuple[Job, ...] = (
    ("tensor", (120, 240, 60), 24, 2),
    ("tensor", (60, 240, 120, 240, 36), 48, 3),
    ("tensor", (60, 240, 120, 240, 36), 24, 4),
)
STAGES: tuple[Job, ...] = (
    ("pipeline", (120, 240, 60), 96, 2),
    ("pipeline", (60, 240, 120, 360, 24), 96, 4),
)


def _counted(jobs: tuple[Job, ...]) -> list[list[int]]:
    """[job][rank]."""
    found: dict[Job, list[int]] = {}
    for ranks in sorted({job[-1] for job in jobs}):
        some = [job for job in jobs if job[-1] == ranks]
        run = own_ranks.launched(sent_by_this_rank, ranks, some, backend="ring")
        found |= {job: [by_rank[i] for by_rank in run] for i, job in enumerate(some)}
    return [found[job] for job in jobs]


def _require(answer: Answer, jobs: tuple[Job, ...], hint: str) -> None:
    said = call_each(answer, jobs, shuffled=True)
    for (wrapper, widths, samples, ranks), got, right in zip(
        jobs, said, _counted(jobs), strict=True
    ):
        where = f"{wrapper!r} on {ranks} ranks, widths {widths}, {samples} samples"
        require(
            isinstance(got, (list, tuple)) and len(got) == ranks,
            f"{where}: a number of bytes for each rank is wanted, in a list; got {got!r}.",
        )
        for rank, (one, counted) in enumerate(zip(got, right, strict=True)):
            value = number(one)
            near = isinstance(value, (int, float)) and abs(value - counted) <= NEAR * counted
            require(
                near,
                f"{where}: rank {rank} sends {counted:,} bytes, as was counted; you say {one!r}. {hint}",
            )


@WHO.check("replicas", points=2)
def check_replicas(answer: Answer) -> None:
    """DDP."""
    _require(
        answer, REPLICAS, "What is averaged, and how many times its bytes does a rank of an all-reduce send?"
    )  # fmt: skip


@WHO.check("shards", points=3)
def check_shards(answer: Answer) -> None:
    """Once or twice gathered; rows that are not even."""
    _require(
        answer, SHARDS,
        "How often is each layer gathered, how often is its gradient given out, and how many rows has the largest part "
        "where the number of rows is not a multiple of the ranks?",
    )  # fmt: skip


@WHO.check("cut layers", points=3)
def check_cuts(answer: Answer) -> None:
    """Columns, then rows."""
    _require(
        answer, CUTS,
        "Which sums does a pair of layers make, forward and backward, how wide are they, and does anybody want the "
        "gradient of the samples?",
    )  # fmt: skip


@WHO.check("stages", points=2)
def check_stages(answer: Answer) -> None:
    """Not all ranks send as much."""
    _require(answer, STAGES, "Which tensors cross each border, and which rank sends each of them?")
