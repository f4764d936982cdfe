"""A step of data, pipeline and tensor parallelism by hand: axes in any order, and cuts that are not even."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.checks.lesson_22_hybrid_parallelism.mesh_jobs import (
    NAMES,
    SAMPLES,
    Job,
    Mesh,
    Tensors,
    counts,
    drawn,
    least_bytes,
    most_bytes,
    shares,
    total,
)
from dtcourse.course.judging import (
    Answer,
    CheckFailed,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)

STEP = Exercise(
    "mesh_step",
    lesson="22",
    title="A step on three axes",
    takes=("mesh_step",),
    target="every gradient equal to one process's to 1e-9, on 4, 6 and 8 ranks in 6 orders of the axes; on each axis "
    "at most the bytes of 2 all-reduces per stage and of one of what each rank holds",
    forbidden=(
        "torch.distributed.init_device_mesh",
        "torch.distributed.device_mesh",
        "torch.distributed.DeviceMesh",
        "torch.distributed.tensor",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
        "torch.nn.parallel",
        "dtcourse.collectives.autograd",
        "dtcourse.data_parallel",
        "dtcourse.hybrid",
        "dtcourse.parameters",
        "dtcourse.pipeline_parallel",
        "dtcourse.simulator",
        "dtcourse.tensor_parallel",
    ),
)

FOUR = (Mesh(("tp", "pp", "dp"), (2, 1, 2)), Mesh(("dp", "pp", "tp"), (2, 2, 1)))
SIX = (Mesh(("tp", "dp", "pp"), (3, 2, 1)), Mesh(("pp", "dp", "tp"), (2, 3, 1)))
EIGHT = (Mesh(("pp", "tp", "dp"), (2, 2, 2)), Mesh(("dp", "tp", "pp"), (2, 2, 2)))


def _steps(mesh_step: Any, given: list[tuple[Any, ...]]) -> list[Any]:
    """In a rank: what each call returns."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for axes, sizes, part in given:
        try:
            found.append(mesh_step(axes, dict(zip(axes, sizes, strict=True)), part, SAMPLES))
        except ValueError as error:
            if "disagree" not in str(error):
                raise
            raise CheckFailed(
                f"On {Mesh(axes, sizes)}, rank {rank}: {error}. Where on the mesh are these ranks, the axes in the "
                "order in which they are given, and how many samples has the part of each?"
            ) from None
    return found


def _run(answer: Answer, jobs: list[Job], **options: Any) -> Any:
    ranks = jobs[0].mesh.ranks
    own = [[(j.mesh.axes, j.mesh.sizes, j.part(rank)) for j in jobs] for rank in range(ranks)]
    return answer.run(_steps, ranks, Each(own), backend="ring", **options)


def _hint(job: Job, name: str, rank: int, got: Tensor) -> str:
    """The question that leads out of what this gradient looks like."""
    here, by_part = job.mesh.place(rank), shares(job)

    def is_of(many: list[Tensors]) -> bool:
        mine = job.slices(total(many), here["tp"])[name]
        return mine.shape == got.shape and torch.allclose(got.double(), mine, rtol=1e-6, atol=1e-9)

    stage, part = here["pp"], here["dp"]
    own_part = [by_part[part][s] for s in range(len(job.stages))] if name == "scale" else []
    if is_of(own_part or [by_part[part][stage]]):
        return "Only this rank's own samples are in it. Which ranks have the others?"
    if name == "scale" and is_of([one[stage] for one in by_part]):
        return "It has what one stage adds to it. Which ranks hold the same `scale`, and use it elsewhere?"
    if name == "scale" and is_of([by_part[part][stage]]):
        return "It is this rank's own. Over which axes do ranks hold the same `scale`, with something else to add?"
    for divided in (1, len(by_part)):
        means = [
            {n: t * SAMPLES / count / divided for n, t in one.items()}
            for count, parts in zip(counts(job.mesh), by_part, strict=True)
            for one in (parts if name == "scale" else [parts[stage]])
        ]
        if is_of(means):
            return "Each part is divided by its own number of samples. What is the whole batch's loss divided by?"
    if name == "b2":
        return (
            "Its gradient is that of a layer's output, summed over samples. Is that output whole, with b2 in it once, "
            "and the same on all ranks of tp? And is the gradient?"
        )
    if name == "scale":
        return (
            "All ranks of tp hold it, and each multiplies it into its own rows of w1: what has each of them of its "
            "gradient?"
        )
    return "Which numbers of a layer's input, hidden layer and output has a rank, and which gradients of them?"


def _compare(answer: Answer, meshes: tuple[Mesh, ...]) -> None:
    jobs = [drawn(mesh) for mesh in meshes]
    run = _run(answer, jobs)
    for at, job in enumerate(jobs):
        by_part = shares(job)
        for rank in range(job.mesh.ranks):
            here, got = job.mesh.place(rank), run[rank][at]
            require(
                isinstance(got, dict) and set(got) == set(NAMES),
                f"On {job.mesh}, rank {rank} returns {sorted(got) if isinstance(got, dict) else got!r}; the gradients "
                f"of {', '.join(NAMES)} are wanted, in a dict.",
            )
            right = total([parts[here["pp"]] for parts in by_part])
            right["scale"] = total(list(itertools.chain(*by_part)))["scale"]
            on = ", ".join(f"{axis} {here[axis]}" for axis in job.mesh.axes)
            for name, expected in job.slices(right, here["tp"]).items():
                mine = got[name]
                hint = _hint(job, name, rank, mine) if isinstance(mine, Tensor) else ""
                where = f"On {job.mesh}, rank {rank} ({on}): the gradient of {name}"
                require_close(mine, expected, where, 1e-9, hint, split=True)


@STEP.check("two axes, in two orders", points=3)
def check_two(answer: Answer) -> None:
    """Tensor parallelism outermost and data innermost; stages inside of data parallelism."""
    _compare(answer, FOUR)


@STEP.check("parts of unlike size", points=3)
def check_uneven(answer: Answer) -> None:
    """Three slices of seven hidden numbers, three parts of seven samples."""
    _compare(answer, SIX)


@STEP.check("three axes, in two orders", points=3)
def check_three(answer: Answer) -> None:
    """Eight ranks."""
    _compare(answer, EIGHT)


@STEP.check("the bytes of each axis", points=3, needs=("check_three",))
def check_bytes(answer: Answer) -> None:
    """Counted by who sends to whom."""
    hints = {
        "dp": "What does each rank hold of every gradient, and how often does that have to be sum over dp?",
        "pp": "What of a sample crosses from one stage to the next, and what of the weights do two stages share?",
        "tp": "Which sum does a stage make forward, and which one backward? Both have a number for each sample and "
        "each of its width, and none of the hidden ones.",
    }
    for mesh in (FOUR[1], SIX[0]):
        run = _run(answer, [drawn(mesh)], record=True)
        sent = dict.fromkeys(mesh.axes, 0)
        for row in run.traffic.select(direction="sent"):
            require(
                row.peer is not None,
                "Some messages are not counted: do all go through torch.distributed?",
            )
            here, there = mesh.place(row.rank), mesh.place(row.peer)
            apart = [axis for axis in mesh.axes if here[axis] != there[axis]]
            require(
                len(apart) == 1,
                f"On {mesh}, rank {row.rank} sends to rank {row.peer}, which is another one in {' and '.join(apart)}. "
                "Which axis is this message's?",
            )
            sent[apart[0]] += row.bytes
        for axis, most in most_bytes(mesh).items():
            require(
                sent[axis] <= most,
                f"On {mesh}, {sent[axis]:,} bytes are sent over {axis}, and {most:,} are enough. {hints[axis]}",
            )
        for rank in range(mesh.ranks):
            here = mesh.place(rank)
            for axis, least in least_bytes(mesh, rank).items():
                peers = [r for r in range(mesh.ranks) if mesh.place(r)[axis] != here[axis]]
                came = sum(run.traffic.bytes_received(rank, peer=peer) for peer in peers)
                require_received(f"On {mesh}, over {axis}, rank {rank}", came, least)
