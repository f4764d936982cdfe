"""A model in a pipeline's stages: which are alike, and which ranks hold the same ones. Most of many stages are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dtcourse.planner.layout import Layout, layers_of
from dtcourse.planner.model import Model
from dtcourse.planner.pipelines import rank_of
from dtcourse.planner.segments import Segment
from dtcourse.planner.sharding import Weights
from dtcourse.planner.stage import Stages, runs


class Piece(NamedTuple):
    """A stage. Equal ones cost the same: as many blocks, experts in the same of these, the same ends.

    start: the first block's number, modulo the model's moe_every
    """

    start: int
    blocks: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Pieces:
    """of: by stage; owner: by stage, its rank; alike: by the stages that a rank holds, the ranks with equal ones."""

    of: list[Piece]
    owner: list[int]
    alike: dict[tuple[Piece, ...], list[int]]

    @classmethod
    def cut(cls, model: Model, pp: int, schedule: str, chunks: int) -> Pieces:
        """As predict() cuts it."""
        lengths = layers_of(model, Layout(pp=pp, schedule=schedule, chunks=chunks))
        found, start = [], 0
        for number, blocks in enumerate(lengths):
            last = number == len(lengths) - 1
            found.append(Piece(start % model.moe_every, blocks, number == 0, last))
            start += blocks
        owner = rank_of(schedule, pp, chunks)
        held: dict[int, tuple[Piece, ...]] = {}
        for piece, rank in zip(found, owner, strict=True):
            held[rank] = (*held.get(rank, ()), piece)
        alike: dict[tuple[Piece, ...], list[int]] = {}
        for rank, stages in held.items():
            alike.setdefault(stages, []).append(rank)
        return cls(found, owner, alike)

    def units(self, made: Stages) -> dict[Piece, list[tuple[Weights, int]]]:
        """Of each stage, numbers that a rank computes with, unit by unit."""
        return {
            piece: [(each, n) for (_, each), n in runs(made.units(*piece))]
            for piece in set(self.of)
        }


def segments_of(made: Stages, piece: Piece) -> list[tuple[Segment, int]]:
    """What is computed in a stage, and how often."""
    return [(each, count) for (each, _), count in runs(made.units(*piece))]
