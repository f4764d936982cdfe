"""Short runs on a mesh of data, pipeline and tensor parallelism, one of whose reductions may be wrong, and their logs.

What a diagnosis is asked about. Each rank has a copy of its own of what it holds, and steps with its own gradient, so a
mistake does to a run what it would do on ranks. All of them are in one process: ranks are dims of the tensors.

Shape suffixes: R, S, T ranks of dp, pp, tp; C copies of the tied embedding (first and last stage); N tokens of a rank;
V vocabulary, D width, H hidden numbers of a rank.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

AXES = ("dp", "pp", "tp")
VOCAB, WIDTH, HIDDEN, TOKENS, STEPS, LR, MOST = 9, 6, 12, 4, 6, 0.3, 2.0
APART = 0.01  # a run with a mistake has, in some step, a loss that is off by so much
ROUNDED = 1e-6  # a log's numbers are right to this part of them
# Whose copies each axis has. All ranks of an axis hold a part of the gradient of what they have copies of.
COPIES = {"embed": AXES, "norm": ("dp", "tp"), "in": ("dp",), "out": ("dp",)}
# The dim of each axis, of every tensor of copies.
DIM = {axis: dim for dim, axis in enumerate(AXES)}
Diagnosis = tuple[str, str | None]
Log = list[dict[str, Any]]
Given = tuple[tuple[str, ...], dict[str, int], Log, Log]


@dataclass(frozen=True)
class Run:
    """kind, axis: the diagnosis; since: the first step that is wrong; axes: the mesh's, the outermost first."""

    kind: str
    axis: str | None
    since: int
    axes: tuple[str, ...]
    sizes: dict[str, int]

    def wrong(self, kind: str, axis: str, step: int) -> bool:
        """Whether this mistake is made in a step."""
        return (self.kind, self.axis) == (kind, axis) and step >= self.since


def logged(number: Tensor | float) -> float:
    """As a log has it."""
    return float(number) * (1 + random.uniform(-ROUNDED, ROUNDED))


class Copies:
    """What the ranks of a mesh hold of one model, and one step of all of them."""

    def __init__(self, whole: dict[str, Tensor], run: Run) -> None:
        R, S, T = (run.sizes[axis] for axis in AXES)
        self.run, self.shape = run, (R, S, T)
        cut = HIDDEN // T
        self.weights = {
            "embed": whole["embed"].expand(R, min(S, 2), T, VOCAB, WIDTH),
            "norm": whole["norm"][None, :, None].expand(R, S, T, WIDTH),
            "in": whole["in"].view(1, S, T, cut, WIDTH).expand(R, S, T, cut, WIDTH),
            "out": whole["out"].view(1, S, WIDTH, T, cut).transpose(2, 3).expand(R, S, T, WIDTH, cut),
        }  # fmt: skip

    def loss(self, tokens_RTN: Tensor, targets_RTN: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the whole batch, and each rank's part of the gradients."""
        leaves = {name: w.clone().requires_grad_() for name, w in self.weights.items()}
        R, S, T = self.shape
        first_RTVD, last_RTVD = leaves["embed"][:, 0], leaves["embed"][:, -1]
        at = [torch.arange(size).view(-1, *[1] * dims) for size, dims in ((R, 2), (T, 1))]
        x_RTND = first_RTVD[at[0], at[1], tokens_RTN]
        for s in range(S):
            scaled = x_RTND / x_RTND.square().mean(-1, keepdim=True).sqrt()
            # Each rank of tp multiplies its own tokens by its copy, and then all have all tokens.
            all_RMD = (scaled * leaves["norm"][:, s, :, None]).flatten(1, 2)
            hidden = torch.einsum("rmd,rthd->rtmh", all_RMD, leaves["in"][:, s]).relu()
            out_RMD = torch.einsum("rtmh,rtdh->rmd", hidden, leaves["out"][:, s])
            x_RTND = x_RTND + out_RMD.view_as(x_RTND)
        logits = torch.einsum("rtnd,rtvd->rtnv", x_RTND, last_RTVD)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), targets_RTN.flatten())
        grads = torch.autograd.grad(loss, list(leaves.values()))
        return loss.detach(), dict(zip(leaves, grads, strict=True))

    def reduced(self, own: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """The gradients that each rank uses."""
        used = {}
        for name, grad in own.items():
            for axis in COPIES[name]:
                times = 2 if self.run.wrong("doubled", axis, step) else 1
                for _ in range(0 if self.run.wrong("missing", axis, step) else times):
                    grad = grad.sum(DIM[axis], keepdim=True).expand_as(grad)
            used[name] = grad
        return used

    def norms(self, used: dict[str, Tensor], step: int) -> Tensor:
        """(R, S, T): the norm of all gradients, as each rank has it. A copy counts once."""
        squares = torch.zeros(self.shape, dtype=torch.double)
        for name, grad in used.items():
            of_ranks = grad.flatten(3).square().sum(-1)
            if "tp" in COPIES[name]:
                of_ranks = of_ranks * (torch.arange(self.shape[2]) == 0)
            if name == "embed":
                squares[:, 0] += of_ranks[:, 0]
            else:
                squares += of_ranks
        over = [axis for axis in ("pp", "tp") if not self.run.wrong("norm", axis, step)]
        if self.run.wrong("norm", "dp", step):
            over.append("dp")
        for axis in over:
            squares = squares.sum(DIM[axis], keepdim=True).expand(self.shape)
        return squares.sqrt()

    def update(self, used: dict[str, Tensor], norms_RST: Tensor) -> None:
        """SGD, after clipping."""
        factor_RST = (MOST / norms_RST).clamp(max=1.0)
        for name, grad in used.items():
            factor = factor_RST[:, [0, -1][: grad.shape[1]]] if name == "embed" else factor_RST
            by_copy = factor.view(*factor.shape, *[1] * (grad.dim() - 3))
            self.weights[name] = self.weights[name] - LR * by_copy * grad


def by_rank(run: Run, grads: dict[str, Tensor]) -> list[dict[str, float]]:
    """The norm of each gradient that a rank holds, in the order of the ranks."""
    found = []
    for place in itertools.product(*(range(run.sizes[axis]) for axis in run.axes)):
        here = dict(zip(run.axes, place, strict=True))
        r, s, t = (here[axis] for axis in AXES)
        held = {name: grad[r, s, t] for name, grad in grads.items() if name != "embed"}
        if s in (0, run.sizes["pp"] - 1):
            held["embed"] = grads["embed"][r, 0 if s == 0 else -1, t]
        found.append({name: logged(grad.norm()) for name, grad in held.items()})
    return found


def drawn(kind: str, turn: int) -> tuple[Given, tuple[str, str | None]]:
    """A run with this mistake, or "healthy", as an answer gets it, and its diagnosis.

    turn: 0 to 3: three of four have an axis each, and one or two go wrong later than in the first step
    """
    axis = None if kind == "healthy" else (*AXES, random.choice(AXES))[turn]
    since = random.choice((1, 2)) if turn in (1, random.choice((2, 3))) else 0
    while True:
        sizes = {one: random.choice((2, 3) if one == axis else (1, 2, 3)) for one in AXES}
        run = given(Run(kind, axis, since, tuple(random.sample(AXES, 3)), sizes))
        *_, log, reference = run
        off = [abs(a["loss"] / b["loss"] - 1) for a, b in zip(log, reference, strict=True)]
        # Some mistakes are without a consequence: clipping takes a factor away.
        if axis is None or max(off) > APART:
            return run, (kind, axis)


def given(run: Run) -> Given:
    """Trains a run, and the same model on the same tokens without dp and tp."""
    R, S, T = (run.sizes[axis] for axis in AXES)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double)

    whole = {
        "embed": normal(VOCAB, WIDTH) / 2,
        "norm": 1 + normal(S, WIDTH) / 10,
        "in": normal(S, HIDDEN, WIDTH) / math.sqrt(WIDTH),
        "out": normal(S, WIDTH, HIDDEN) / math.sqrt(HIDDEN),
    }
    one = Run("healthy", None, 0, AXES, {"dp": 1, "pp": S, "tp": 1})
    copies, alone = Copies(whole, run), Copies(whole, one)
    log: Log = []
    reference: Log = []
    for step in range(STEPS):
        tokens = torch.randint(VOCAB, (R, T, TOKENS))
        # What there is to learn: the token that follows.
        batch = torch.stack([tokens, (2 * tokens + 1) % VOCAB])
        loss, own = copies.loss(*batch)
        used = copies.reduced(own, step)
        norms = copies.norms(used, step)
        copies.update(used, norms)
        order = [AXES.index(axis) for axis in run.axes]
        log.append(
            {
                "loss": logged(loss),
                "norm": [logged(norm) for norm in norms.permute(order).flatten()],
                "own": by_rank(run, own),
                "used": by_rank(run, used),
            }
        )
        loss, own = alone.loss(*batch.view(2, 1, 1, -1))
        used = alone.reduced(own, step)
        norms = alone.norms(used, step)
        alone.update(used, norms)
        grads: dict[str, Any] = {
            name: [logged(grad[0, s, 0].norm()) for s in range(S)]
            for name, grad in used.items()
            if name != "embed"
        }
        grads["embed"] = logged(used["embed"][0, 0, 0].norm())
        reference.append({"loss": logged(loss), "norm": logged(norms[0, 0, 0]), "grads": grads})
    return run.axes, run.sizes, log, reference
