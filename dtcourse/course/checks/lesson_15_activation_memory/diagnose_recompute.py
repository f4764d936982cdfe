"""Records of steps with checkpointed blocks: which block is broken, and how."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.course.judging import Answer, Exercise, call_each, require_diagnosis

DIAGNOSE = Exercise(
    "diagnose_recompute",
    lesson="15",
    title="Which block is broken, and how?",
    takes=("diagnose_recompute",),
    target="15 of 15 steps, of 4 to 6 blocks",
)

RIGHT = (
    "Two runs of a block may differ by rounding. A frozen block before which nothing trains has no gradient, and "
    "nothing to run again for. One batch moves a running mean by a tenth of the way to the batch's."
)
Diagnosis = tuple[str, int | None]
Record = list[dict[str, Any]]  # by block
# Blocks, how many of the first ones are frozen, the block at fault, and the noise of the second run's kernels.
SIZES = ((4, 0, 2, 0.0), (5, 1, 3, 1e-7), (6, 2, 4, 1e-7))


class Block(nn.Module):
    """Linear, batch norm and dropout; keeps what each run put out, and moves its statistics once, if it is told to."""

    def __init__(self, width: int, careful: bool, noise: float) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.careful, self.noise = careful, noise
        self.outputs: list[Tensor] = []

    def running_mean(self) -> Tensor:
        """A copy of what the batch norm has now."""
        assert self.norm.running_mean is not None
        return self.norm.running_mean.clone()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        if not self.outputs:
            self.batch_mean = hidden.detach().mean(0)
        self.norm.momentum = 0.0 if self.outputs and self.careful else 0.1
        out = nn.functional.dropout(self.norm(hidden).relu(), 0.4)
        seen = out.detach().clone()
        if self.outputs:
            seen *= 1 + self.noise * torch.sin(torch.arange(out.numel())).view_as(out)
        self.outputs.append(seen)
        return out


def recorded(kind: str, size: tuple[int, int, int, float]) -> Record:
    """What is seen of a step with PyTorch's checkpoint, in which one block has a mistake."""
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    number, frozen, odd, noise = size
    if kind == "cut off":
        odd = frozen  # the first block that trains: its input needs no gradient
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(number)
        blocks = [Block(4, kind != "moved twice" or i != odd, noise) for i in range(number)]
        for block in blocks[:frozen]:
            block.requires_grad_(False)
        x = torch.randn(12, 4)
        before = [block.running_mean() for block in blocks]
        with set_checkpoint_early_stop(False):
            for i, block in enumerate(blocks):
                wrong = i == odd
                if wrong and kind == "not recomputed":
                    x = block(x)
                elif wrong and kind == "cut off":
                    x = checkpoint(block, x, use_reentrant=True)
                else:
                    keep = not (wrong and kind == "other mask")
                    x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=keep)
            x.square().sum().backward()
    return [
        {
            "outputs": block.outputs,
            "mean": (start, block.running_mean()),
            "batch_mean": block.batch_mean,
            "trains": i >= frozen,
            "gradient": block.linear.weight.grad,
        }
        for i, (block, start) in enumerate(zip(blocks, before, strict=True))
    ]


@cache
def cases() -> dict[str, list[tuple[Record, Diagnosis]]]:
    """Three steps of each kind, always the same ones."""
    found: dict[str, list[tuple[Record, Diagnosis]]] = {}
    for kind in ("healthy", "other mask", "moved twice", "cut off", "not recomputed"):
        for size in SIZES:
            _, frozen, odd, _ = size
            at = None if kind == "healthy" else frozen if kind == "cut off" else odd
            found.setdefault(kind, []).append((recorded(kind, size), (kind, at)))
    return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    tried = cases()[kind] + cases()["healthy"]
    said = call_each(answer, [(blocks,) for blocks, _ in tried])
    for (blocks, right), got in zip(tried, said, strict=True):
        frozen = sum(not block["trains"] for block in blocks)
        named = got[1] if isinstance(got, (list, tuple)) and len(got) == 2 else None
        # A block before the broken one is blamed: it is right, and the sentence says why.
        blamed = type(named) is int and right[1] is not None and named < right[1]
        require_diagnosis(
            f"A step of {len(blocks)} blocks, of which the first {frozen} are frozen",
            got,
            right,
            f"Block {named} is right. {RIGHT}" if blamed else hint,
            RIGHT,
            example=("other mask", 2),
        )


@DIAGNOSE.check("another dropout mask in the second run", points=2)
def check_mask(answer: Answer) -> None:
    """The random state was not kept."""
    _require(answer, "other mask", "Which block's two outputs differ, by more than rounding?")


@DIAGNOSE.check("statistics that moved twice", points=3)
def check_moved(answer: Answer) -> None:
    """0.9 times the old mean and 0.1 times the batch's, and then once more."""
    _require(
        answer,
        "moved twice",
        "What is a running mean after one batch, by the formula, and after the same batch twice?",
    )


@DIAGNOSE.check("a block that is not in the graph", points=2)
def check_cut(answer: Answer) -> None:
    """It trains, and gets no gradient; and it is not run again, which is a consequence."""
    _require(
        answer, "cut off", "Which block should train and has no gradient? Look at that before its outputs."
    )  # fmt: skip


@DIAGNOSE.check("a block that is not checkpointed", points=2)
def check_kept(answer: Answer) -> None:
    """Its gradient is right, and its activations are kept."""
    _require(
        answer,
        "not recomputed",
        "Which block ran once, although it trains? Its activations were kept.",
    )
