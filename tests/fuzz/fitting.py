"""Which programs are not for a technique, and which it refuses by design."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dtcourse.verify.programs import Program, Truth

# --- what programs ask of a technique ---------------------------------------------------------------------------


def rank_needs_all(program: Program, truth: Truth) -> bool:
    """Whether every backward that averages gives each parameter a gradient, on each rank."""
    return all(
        used == truth.trained
        for step, micro_batches in zip(truth.used, program.steps, strict=True)
        for backward, micro_batch in zip(step, micro_batches, strict=True)
        if micro_batch.sync
        for used in backward
    )


def gradients_twice(program: Program) -> bool:
    """Whether a backward may give a parameter several gradients: under reentrant checkpoints, each brings its own."""
    reentrant = {i for i, block in enumerate(program.blocks) if block.recompute == "reentrant"}
    tied = {j for i, b in enumerate(program.blocks) if b.same_as for j in (i, b.same_as[0])}
    twice = any(len(m.forwards) > 1 for step in program.steps for m in step)
    return bool(reentrant) and (twice or bool(tied))


def unfit_for_zeros(program: Program, truth: Truth) -> str:
    unused = any(
        g is None for step in truth.steps.gradients for n, g in step.items() if n in truth.trained
    )
    if unused and (program.momentum or program.weight_decay):
        return "it takes no gradient for one of zero, and this optimizer makes a difference of that"
    return ""


def unfit_local(program: Program, truth: Truth) -> str:
    apart = any(len(set(backward)) > 1 for step in truth.used for backward in step)
    if apart and (program.momentum or program.weight_decay):
        return "a rank without a gradient takes no step, though another has one, and this optimizer would"
    return ""


def unfit_own_buffers(program: Program, truth: Truth) -> str:
    buffers = any(block.buffer for block in program.blocks)
    return "each rank computes with its own buffers, from the start" if buffers else ""


def unfit_per_parameter(program: Program, truth: Truth) -> str:
    if any(len(set(backward)) > 1 for step in truth.used for backward in step):
        return "it all-reduces what has come, so the ranks must use the same parameters"
    return "it all-reduces each gradient that comes" if gradients_twice(program) else ""


def unfit_static(program: Program, truth: Truth) -> str:
    for rank in range(program.ranks):
        if len({backward[rank] for step in truth.used for backward in step}) > 1:
            return "the promise of a static graph does not hold"
    times = {
        tuple(sorted(left_out for left_out in (f.left_out[rank] for f in m.forwards)))
        for rank in range(program.ranks)
        for step in program.steps
        for m in step
    }
    return "" if len({len(t) for t in times}) == 1 else "gradients come another number of times"


def units_of(program: Program, units: str) -> set[int]:
    """The blocks that are units; one that is used again is the same unit."""
    if units == "root":
        return set()
    weights = [b.same_as[0] for b in program.blocks if b.same_as and not b.is_repeated]
    return {
        i
        for i, block in enumerate(program.blocks)
        if not block.is_repeated
        and (block.unit if units == "blocks" else not block.same_as and i not in weights)
    }


def unfit_units(units: str) -> Callable[[Program, Truth], str]:
    """A unit is gathered by all its ranks together: so they run it in the same forwards."""

    def unfit(program: Program, truth: Truth) -> str:
        made = units_of(program, units)
        made |= {i for i, b in enumerate(program.blocks) if b.same_as and b.same_as[0] in made}
        forwards = [f for step in program.steps for m in step for f in m.forwards]
        together = all(len({out & made for out in f.left_out}) == 1 for f in forwards)
        return "" if together else "a unit is run by some of the ranks"

    return unfit


# --- polite refusals --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A program that a technique does not do, by design, and says so: `words` in the error, `where` it is right to."""

    words: str
    where: Callable[[str, Program, Truth], bool]


REFUSALS = {
    "a parameter without a gradient on this rank, and nobody was told to look for it": Refusal(
        r"this backward gave no gradient to .* (find_unused_parameters=True)",
        lambda name, program, truth: "unused" not in name and not rank_needs_all(program, truth),
    ),
    "several gradients of one parameter in one backward, under reentrant checkpoints": Refusal(
        r"reentrant checkpoints (that )?share a parameter",
        lambda name, program, truth: gradients_twice(program),
    ),
    "a parameter without rows": Refusal(
        r"is a scalar, and has no rows to cut",
        lambda name, program, truth: (
            "fully_shard" in name and any(b.kind == "number" for b in program.blocks)
        ),
    ),
    "one parameter in two units": Refusal(
        r"is the same parameter as .* of another unit",
        lambda name, program, truth: any(b.same_as and not b.is_repeated for b in program.blocks),
    ),
}


def refusal_of(errors: list[str], technique: str, program: Program, truth: Truth) -> str | None:
    """The refusal that one of the ranks' errors is, if there is reason for it."""
    for name, refusal in REFUSALS.items():
        said = any(re.search(refusal.words, error, re.DOTALL) for error in errors)
        if said and refusal.where(technique, program, truth):
            return name
    return None
