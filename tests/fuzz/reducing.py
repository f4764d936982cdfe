"""Makes a failing example smaller, while it fails in the same way: all simpler ones of a round in one launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from dtcourse.verify.chains import Block
from dtcourse.verify.programs import Forward, MicroBatch, Program
from tests.fuzz.running import Example, complaints
from tests.fuzz.strategies import RECOMPUTED

ROUNDS = 30
TRIED_AT_ONCE = 24


def reduced(
    example: Any,
    said: str,
    simpler_than: Callable[[Any], Iterable[Any]] | None = None,
    complain: Callable[[list[Any]], list[str]] | None = None,
) -> tuple[Any, str]:
    """The smallest example that was found, and what is wrong with it.

    simpler_than, complain: of an example, and of some, what there is to try and what is wrong. Default: those of
                            programs under a technique
    """
    simpler_than, complain = simpler_than or simpler_examples, complain or of_programs
    for _ in range(ROUNDS):
        candidates = list(simpler_than(example))
        for start in range(0, len(candidates), TRIED_AT_ONCE):
            part = candidates[start : start + TRIED_AT_ONCE]
            texts = complain(part)
            alike = [i for i, text in enumerate(texts) if text and kind(text) == kind(said)]
            if alike:
                example, said = part[alike[0]], texts[alike[0]]
                break
        else:
            break
    return example, said


def simpler_examples(example: Example) -> Iterator[Example]:
    name, program = example
    return ((name, candidate) for candidate in simpler(program))


def of_programs(examples: list[Example]) -> list[str]:
    return complaints(examples, examples[0][1].ranks)


def kind(complaint: str) -> str:
    """What two complaints of the same fault have in common."""
    for words in ("killed", "has no gradient", "times too", "is zero", "elsewhere", "not finite"):
        if words in complaint:
            return words
    return re.sub(r"\W*rank \d+|(layers|blocks)\S*|\d+", "", complaint.splitlines()[0])[:60]


def simpler(program: Program) -> Iterator[Program]:
    """Programs with something less, the largest cuts first."""
    for steps in shorter(program.steps):
        yield replace(program, steps=steps)
    for i in range(1, len(program.blocks)):
        if without := without_block(program, i):
            yield without
    for s, step in enumerate(program.steps):
        for backwards in shorter(step):
            if backwards[-1].sync:
                yield replace(program, steps=put(program.steps, s, backwards))
        for b, micro_batch in enumerate(step):
            for forwards in shorter(micro_batch.forwards):
                one = replace(micro_batch, forwards=forwards)
                yield replace(program, steps=put(program.steps, s, put(step, b, one)))
            if not micro_batch.sync:
                loud = replace(micro_batch, sync=True)
                yield replace(program, steps=put(program.steps, s, put(step, b, loud)))
    for field in fields(Program):
        if field.name in ("returns", "momentum", "weight_decay", "set_to_none") and (
            getattr(program, field.name) != field.default
        ):
            yield replace(program, **{field.name: field.default})
    if program.width > 1:
        yield replace(program, width=1)
    for i, block in enumerate(program.blocks):
        for name, plain in PLAIN.items():
            if getattr(block, name) != plain:
                changed: Any = replace(block, **{name: plain})
                candidate = replace(program, blocks=put(program.blocks, i, changed))
                if consistent(candidate):
                    yield candidate
    for s, step in enumerate(program.steps):
        for b, micro_batch in enumerate(step):
            for f, forward in enumerate(micro_batch.forwards):
                for plainer in plainer_forwards(forward):
                    one = replace(micro_batch, forwards=put(micro_batch.forwards, f, plainer))
                    yield replace(program, steps=put(program.steps, s, put(step, b, one)))


PLAIN = {
    "same_as": None,
    "kind": "linear",
    "inner": 1,
    "bias": False,
    "frozen": frozenset(),
    "optional": False,
    "beside": False,
    "recompute": "",
    "returns": "tensor",
    "buffer": False,
    "unit": False,
}


def plainer_forwards(forward: Forward) -> Iterator[Forward]:
    """All blocks, or one row, on one rank."""
    for rank, blocks in enumerate(forward.left_out):
        if blocks:
            yield replace(forward, left_out=put(forward.left_out, rank, frozenset()))
        if forward.rows[rank] != 1:
            yield replace(forward, rows=put(forward.rows, rank, 1))


def consistent(program: Program) -> bool:
    """Whether blocks that share have the same kind, and only optional ones are left out."""
    for block in program.blocks:
        if block.same_as is not None:
            original = program.blocks[block.same_as[0]]
            if (block.kind, block.inner) != (original.kind, original.inner):
                return False
            returns = original.returns if block.is_repeated else block.returns
        else:
            returns = block.returns
        if block.recompute == "reentrant" and returns not in RECOMPUTED:
            return False
    forwards = [f for step in program.steps for m in step for f in m.forwards]
    left_out = {i for forward in forwards for blocks in forward.left_out for i in blocks}
    return all(program.blocks[i].optional for i in left_out)


def without_block(program: Program, gone: int) -> Program | None:
    """The program without a block that no other stands on."""

    def new(i: int) -> int:
        return i - (i > gone)

    blocks: list[Block] = []
    for i, block in enumerate(program.blocks):
        if i == gone:
            continue
        if block.same_as is not None:
            if block.same_as[0] == gone:
                return None
            block = replace(block, same_as=(new(block.same_as[0]), block.same_as[1]))
        blocks.append(block)

    def forward(before: Forward) -> Forward:
        kept = (frozenset(new(i) for i in out if i != gone) for out in before.left_out)
        return replace(before, left_out=tuple(kept))

    def backward(before: MicroBatch) -> MicroBatch:
        return replace(before, forwards=tuple(forward(f) for f in before.forwards))

    steps = tuple(tuple(backward(m) for m in step) for step in program.steps)
    return replace(program, blocks=tuple(blocks), steps=steps)


def shorter(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """With one item less, but never empty."""
    if len(items) > 1:
        for i in range(len(items)):
            yield items[:i] + items[i + 1 :]


def put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    """With another item in one place."""
    return (*items[:at], item, *items[at + 1 :])
