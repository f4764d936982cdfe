"""Models and batches on a mesh of data, pipeline and tensor parallelism: what each rank has of them, and what it adds.

The gradients that are right come from one process; so does every part's and every stage's share of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# In the order in which they are compared: what is wrong in one is wrong in those after it.
NAMES = ("b2", "w2", "b1", "w1", "scale")
WIDTH, HIDDEN, SAMPLES = 4, 7, 7  # neither 2 nor 3 ranks divide the last two
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Mesh:
    """axes: the outermost first; sizes: of each, in the same order."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(self.sizes)

    def size(self, axis: str) -> int:
        """Of one axis."""
        return self.sizes[self.axes.index(axis)]

    def place(self, rank: int) -> dict[str, int]:
        """A rank's number on each axis."""
        place = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, place[axis] = divmod(rank, size)
        return place

    def __str__(self) -> str:
        return " x ".join(f"{a} {n}" for a, n in zip(self.axes, self.sizes, strict=True))


@dataclass(frozen=True)
class Job:
    """A model of one layer per stage, and a batch."""

    mesh: Mesh
    stages: list[Tensors]
    x: Tensor
    target: Tensor

    def part(self, rank: int) -> dict[str, Tensor | None]:
        """What a rank is given: its slices, the samples on the first stage, the targets on the last."""
        here = self.mesh.place(rank)
        first, last = here["pp"] == 0, here["pp"] == self.mesh.size("pp") - 1
        x, target = (cut(t, self.mesh.size("dp"), here["dp"], 0) for t in (self.x, self.target))
        slices = self.slices(self.stages[here["pp"]], here["tp"])
        return {**slices, "x": x if first else None, "target": target if last else None}

    def slices(self, whole: Tensors, number: int) -> Tensors:
        """A tp rank's part of a stage's weights, or of their gradients."""
        dims = {"w1": 0, "b1": 0, "w2": 1}
        size = self.mesh.size("tp")
        return {n: cut(t, size, number, dims[n]) if n in dims else t for n, t in whole.items()}


def cut(tensor: Tensor, parts: int, number: int, dim: int) -> Tensor:
    """One of `parts` pieces along a dim; the first ones are one longer where they are not all alike."""
    return tensor.tensor_split(parts, dim)[number].contiguous()


def drawn(mesh: Mesh) -> Job:
    """Another model and batch each time."""
    shapes = {
        "w1": (HIDDEN, WIDTH), "b1": (HIDDEN,), "w2": (WIDTH, HIDDEN), "b2": (WIDTH,)
    }  # fmt: skip
    scale = torch.rand(WIDTH, dtype=torch.double) + 0.5
    stages = [
        {"scale": scale, **{n: torch.randn(s, dtype=torch.double) / 2 for n, s in shapes.items()}}
        for _ in range(mesh.size("pp"))
    ]
    x, target = (torch.randn(SAMPLES, WIDTH, dtype=torch.double) for _ in range(2))
    return Job(mesh, stages, x, target)


def shares(job: Job) -> list[list[Tensors]]:
    """[dp][pp]: what a part of the samples adds to the gradients of a stage's own copy of the weights."""
    found = []
    for part in range(job.mesh.size("dp")):
        x, target = (cut(t, job.mesh.size("dp"), part, 0) for t in (job.x, job.target))
        copies = [{n: t.clone().requires_grad_() for n, t in s.items()} for s in job.stages]
        for c in copies:
            hidden = torch.relu((c["scale"] * x) @ c["w1"].T + c["b1"])
            x = x + hidden @ c["w2"].T + c["b2"]
        loss = (x - target).square().sum() / SAMPLES
        leaves = [c[n] for c in copies for n in NAMES]
        grads = iter(torch.autograd.grad(loss, leaves))
        found.append([{n: next(grads) for n in NAMES} for _ in copies])
    return found


def counts(mesh: Mesh) -> list[int]:
    """Samples of each part."""
    parts = mesh.size("dp")
    return [len(cut(torch.arange(SAMPLES), parts, part, 0)) for part in range(parts)]


def total(many: list[Tensors]) -> Tensors:
    """The sum."""
    return {n: torch.stack([one[n] for one in many]).sum(0) for n in NAMES}


def most_bytes(mesh: Mesh) -> dict[str, int]:
    """Of all ranks together, on each axis, in double precision. An all-reduce of n numbers by p ranks sends
    2 (p - 1) n, whichever of its rings or trees does it.
    """
    dp, pp, tp = (mesh.size(axis) for axis in ("dp", "pp", "tp"))
    activations = SAMPLES * WIDTH
    cut_over_tp = 2 * HIDDEN * WIDTH + HIDDEN
    return {
        "dp": 8 * 2 * (dp - 1) * pp * (cut_over_tp + 2 * WIDTH * tp),
        "pp": 8 * 2 * (pp - 1) * tp * (activations + WIDTH * dp),
        "tp": 8 * 2 * (tp - 1) * pp * 2 * activations,
    }


def least_bytes(mesh: Mesh, rank: int) -> dict[str, int]:
    """That a rank receives on each axis in any step that is right, in double precision: the others' part of its slices'
    gradients; what a stage gets of each of its samples, or of its gradient; what the others add to a layer's output.
    """
    here = mesh.place(rank)
    dp, pp, tp = (mesh.size(axis) for axis in ("dp", "pp", "tp"))
    hidden = len(cut(torch.arange(HIDDEN), tp, here["tp"], 0))
    samples = counts(mesh)[here["dp"]] * WIDTH
    last = here["pp"] == pp - 1  # an inner stage's output may be whole on one of its ranks
    return {
        "dp": 8 * (2 * WIDTH + 1) * hidden if dp > 1 else 0,
        "pp": 8 * samples if pp > 1 else 0,
        "tp": 8 * samples if tp > 1 and last else 0,
    }
