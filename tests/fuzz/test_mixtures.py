"""Random mixtures of experts, given out over ranks, against one process, parameter by parameter, in double.

Where capacity, losses and choice are about all ranks' tokens, the one process computes the whole batch; where each
rank's own, part by part. Sizes are drawn so that most fit the ranks; those that do not have to be refused, on every
rank and with a sentence, and not computed. DTCOURSE_FUZZ and DTCOURSE_FUZZ_SEED as in test_techniques.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import launch
from dtcourse.expert_parallel import (
    average_gradients,
    clip_grad_norm,
    expert_parallel,
    full_gradients,
    full_state_dict,
)
from dtcourse.models import BiasBalancedGate, ExpertChoiceGate, Experts, MoE, TopKGate
from dtcourse.verify import NotEqual, compare, gradients_of
from tests.fuzz.drawing import drawn
from tests.turns import taking_turns

SEED = int(os.environ.get("DTCOURSE_FUZZ_SEED") or 0)
MANY = int(60 * float(os.environ.get("DTCOURSE_FUZZ") or 1))  # mixtures for each number of ranks


@dataclass(frozen=True)
class Case:
    """A chain of mixtures, each added to what goes in; how it is given out; tokens of each micro-batch and rank."""

    mesh: tuple[int, ...]  # its axes are "a" and "b"
    axes: tuple[str, ...] | None
    scope: str
    broadcast: bool
    gate: str
    num_experts: int
    k: int
    renormalise: bool
    kind: str
    bias: bool
    shared: bool
    capacity_factor: float | None
    balancing: float
    z: float
    depth: int
    width: int
    frozen: frozenset[int]
    lengths: tuple[tuple[int, ...], ...]

    def build(self) -> nn.ModuleList:
        """The mixtures, the same on every rank."""
        torch.manual_seed(0)
        model = nn.ModuleList(self.mixture() for _ in range(self.depth)).double()
        for number, parameter in enumerate(model.parameters()):
            nn.init.normal_(parameter)
            parameter.requires_grad_(number not in self.frozen)
        for gate in (mixture.gate for mixture in model):
            if hasattr(gate, "bias_E"):
                nn.init.normal_(gate.bias_E, std=0.2)
        return model.eval()  # a noisy gate is one without noise then

    def mixture(self) -> MoE:
        D, E = self.width, self.num_experts
        gate: Any
        if self.gate == "bias":
            gate = BiasBalancedGate(D, E, self.k, rate=0.3)
        elif self.gate == "choice":
            gate = ExpertChoiceGate(D, E, self.k * 0.75)
        else:
            gate = TopKGate(D, E, self.k, renormalise=self.renormalise, noise=self.gate == "noisy")
        factor = None if self.gate == "choice" else self.capacity_factor
        shared = nn.Linear(D, D) if self.shared else None
        experts = Experts(E, D, 3, kind=self.kind, bias=self.bias)
        return MoE(gate, experts, shared, capacity_factor=factor, balancing=self.balancing, z=self.z)  # fmt: skip

    def tokens(self) -> list[list[torch.Tensor]]:
        """Of each micro-batch, of each rank."""
        make = torch.Generator().manual_seed(1)
        return [
            [torch.randn(n, self.width, generator=make, dtype=torch.double) for n in lengths]
            for lengths in self.lengths
        ]

    def share(self, lengths: tuple[int, ...]) -> float:
        """What one token's term is multiplied with: it is the mean over all ranks' tokens."""
        return 1 / max(1, sum(lengths))

    def fits(self) -> bool:
        """Whether every rank can have as many experts, and balances them as all others do."""
        axes = self.axes or ("ab"[len(self.mesh) - 1],)
        if "c" in axes or (self.scope == "rank" and self.gate == "bias"):
            return False
        ranks = torch.Size(self.mesh["ab".index(axis)] for axis in axes).numel()
        return not self.num_experts % ranks


@st.composite
def cases(draw, p):
    mesh = draw(st.sampled_from([(p,), (1, p), (p, 1), *([(2, 2)] if p == 4 else [])]))
    axes = draw(st.sampled_from([None, ("b",), ("a",), ("a", "b")])) if len(mesh) > 1 else None
    E = draw(st.integers(1, 3)) * (p if draw(st.integers(0, 9)) else 1)
    gate = draw(st.sampled_from(["top", "top", "bias", "choice", "noisy"]))
    length = st.one_of(st.integers(1, 7), st.integers(0, 7))
    each = st.tuples(*[length] * p)
    return Case(
        mesh=mesh,
        axes=axes if draw(st.integers(0, 29)) else ("c",),
        scope=draw(st.sampled_from(["global", "global", "rank"]))
        if gate != "bias" or not draw(st.integers(0, 9))
        else "global",
        broadcast=draw(st.booleans()),
        gate=gate,
        num_experts=E,
        k=draw(st.integers(1, min(E, 4))),
        renormalise=draw(st.booleans()),
        kind=draw(st.sampled_from(["gelu", "swiglu"])),
        bias=draw(st.booleans()),
        shared=draw(st.booleans()),
        capacity_factor=draw(st.sampled_from([None, 0.3, 0.8, 1.0, 1.5])),
        balancing=draw(st.sampled_from([0.0, 0.1, 1.0])),
        z=draw(st.sampled_from([0.0, 0.1])),
        depth=draw(st.integers(1, 2)),
        width=draw(st.integers(1, 4)),
        frozen=draw(st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, 12), max_size=5))),
        lengths=tuple(draw(st.lists(each, min_size=1, max_size=3))),
    )  # fmt: skip


def forward(model: nn.ModuleList, x_ND: torch.Tensor, share: float) -> torch.Tensor:
    """The loss: of the outputs, and the mixtures' own."""
    loss = x_ND.new_zeros(())
    for mixture in model:
        x_ND = x_ND + mixture(x_ND)
        loss = loss + mixture.auxiliary_loss
    return (x_ND**3).sum() * share + loss


def balance(model: nn.ModuleList) -> None:
    """After each micro-batch, so that the next one has another gate."""
    for mixture in model:
        if hasattr(mixture.gate, "update"):
            mixture.gate.update(mixture.counts_E)


def alone(case: Case) -> tuple[nn.ModuleList, list[torch.Tensor]]:
    """One process's model with its gradients, and those of the tokens of each micro-batch."""
    model, grads = case.build(), []
    for lengths, parts in zip(case.lengths, case.tokens(), strict=True):
        share, W = case.share(lengths), len(parts)
        x_ND = torch.cat(parts).requires_grad_()
        if case.scope == "global":
            loss = forward(model, x_ND, share)
        else:
            losses = [forward(model, part, share * W) for part in x_ND.split(lengths)]
            loss = torch.stack(losses).mean()
        loss.backward()
        grads.append(x_ND.grad)
        balance(model)
    return model, grads


MESHES: dict[tuple[int, ...], DeviceMesh] = {}  # a rank's; to make one costs more than an example


def trained(case: Case) -> tuple[nn.ModuleList, list[torch.Tensor]]:
    """The same, each rank with its part of the tokens: the gradients of this rank's."""
    if case.mesh not in MESHES:
        MESHES[case.mesh] = init_device_mesh("cpu", case.mesh, mesh_dim_names=("a", "b")[: len(case.mesh)])  # fmt: skip
    mesh, W, me = MESHES[case.mesh], dist.get_world_size(), dist.get_rank()
    model = case.build()
    if case.broadcast and me:  # the first rank's values count
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    expert_parallel(model, mesh, case.axes, scope=case.scope, broadcast=case.broadcast)
    grads = []
    for lengths, parts in zip(case.lengths, case.tokens(), strict=True):
        x_ND = parts[me].requires_grad_()
        forward(model, x_ND, case.share(lengths) * W).backward()
        grads.append(x_ND.grad / W)
        balance(model)
    average_gradients(model, mesh)
    return model, grads


def differs(case: Case) -> None:
    """Raises NotEqual where this rank has other numbers than one process."""
    model, grads = trained(case)
    plain, right = alone(case)
    for parameter in plain.parameters():
        # No token came to it on any rank: all of them together say zero then.
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    pairs = [("gradient", full_gradients(model), gradients_of(plain))]
    norm = clip_grad_norm(model, 0.1)
    alone_norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1).double()
    pairs.append(("norm", {"all": norm}, {"all": alone_norm}))
    pairs.append(("clipped gradient", full_gradients(model), gradients_of(plain)))
    me = dist.get_rank()
    for i, (lengths, mine, whole) in enumerate(zip(case.lengths, grads, right, strict=True)):
        pairs.append((f"gradient of micro-batch {i}", {"x": mine}, {"x": whole.split(lengths)[me]}))
    state = full_state_dict(model)
    # From here on nothing is sent: a rank that raises alone leaves none waiting.
    for what, found, expected in pairs:
        compare(found, expected, 1e-10, what, norm=2)
    compare(state, plain.state_dict(), 0.0, "value")
    if case.scope == "global":
        for mixture, one in zip(model, plain, strict=True):
            if not torch.equal(mixture.counts_E, one.counts_E) or mixture.num_dropped != one.num_dropped:  # fmt: skip
                raise NotEqual(
                    f"{mixture.counts_E}, {mixture.num_dropped} dropped; alone {one.counts_E}, {one.num_dropped}"
                )


def complaints(examples: list[Case], prove: Callable[[Case], None]) -> list[str]:
    """What is wrong on this rank with each example; "" where it is right, "refused" where it is rightly refused."""
    said = []
    for case in examples:
        fits = case.fits()
        try:
            prove(case)
            said.append("" if fits else "this does not fit, and was not refused")
        except NotEqual as error:
            said.append(str(error))
        except ValueError as error:
            said.append(f"this fits, and was refused: {error}" if fits else "refused")
    return said


@pytest.mark.slow
@pytest.mark.timeout(0)  # the launch has a limit of its own
@pytest.mark.parametrize("p", [4, *taking_turns(2, 3, about="tests/fuzz/")])
def test_experts_on_many_ranks_are_one_process(p):
    examples = drawn(cases(p), MANY, SEED)
    by_rank = [*launch(complaints, p, examples, differs, timeout=600)]
    wrong = [
        f"{p} ranks, {case}\n    rank {rank}: {said}"
        for rank, all_said in enumerate(by_rank)
        for case, said in zip(examples, all_said, strict=True)
        if said not in ("", "refused")
    ]
    assert not wrong, f"{len(wrong)} of {len(examples)}; the shortest:\n" + min(wrong, key=len)
    refused = by_rank[0].count("refused")
    print(f"{p} ranks: {len(examples)} tried, {refused} refused")
    assert 0 < refused < len(examples) / 2, "most should be computed, and some refused"
