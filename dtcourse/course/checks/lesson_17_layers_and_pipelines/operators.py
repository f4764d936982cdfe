"""A graph of operators on several ranks, forward and backward: the job of exercise place_operators.

Operator i needs the outputs of some before it and adds them; its own is y = x + tanh(x U) D. Each rank performs its
operators in the order of their numbers, and backward in the reverse order; a tensor goes to a rank once, in the
background, and the gradients that the rank's operators give it come back as one sum.
"""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import trials

WIDTH, SAMPLES = 16, 32
# Of each operator the inner width, and the operators whose outputs it needs.
Graph = tuple[tuple[int, tuple[int, ...]], ...]


def weights_of(graph: Graph, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """U (WIDTH, inner) and D (inner, WIDTH) of operator i, to train."""
    draw, inner = torch.Generator().manual_seed(i), graph[i][0]
    up = torch.randn(WIDTH, inner, generator=draw) / WIDTH
    down = torch.randn(inner, WIDTH, generator=draw) / WIDTH
    return up.requires_grad_(), down.requires_grad_()


def batch() -> torch.Tensor:
    """What the first operator gets, (SAMPLES, WIDTH)."""
    return torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(99))


def apply(x: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """An operator."""
    up, down = weights
    return x + torch.tanh(x @ up) @ down


def step(choice: tuple[int, ...], graph: Graph) -> tuple[float]:
    """On each rank: the seconds of a step."""
    from dtcourse import emulation

    start = trials.begin_together()
    Placed(choice, graph).step()
    return (emulation.now() - start,)


class Placed:
    """One step of a placed graph on this rank; `weights` of its operators have their gradients afterwards."""

    def __init__(self, choice: tuple[int, ...], graph: Graph) -> None:
        import torch.distributed as dist

        self.choice, self.graph, self.rank = choice, graph, dist.get_rank()
        self.mine = [i for i, at in enumerate(choice) if at == self.rank]
        self.weights = {i: weights_of(graph, i) for i in self.mine}
        self.outputs: dict[int, torch.Tensor] = {}  # of own operators, in their graph
        # (operator, the one of which it is the output)
        self.inputs: dict[tuple[int, int], torch.Tensor] = {}
        self.gradients: dict[int, torch.Tensor] = {}  # of outputs, of all that have come so far
        self.coming: dict[int, list[tuple[torch.Tensor, Any]]] = {}
        self.leaving: list[tuple[torch.Tensor, Any]] = []

    def users(self, i: int, rank: int) -> list[int]:
        """The operators on a rank that need the output of operator i."""
        return [
            k for k in range(len(self.graph)) if i in self.graph[k][1] and self.choice[k] == rank
        ]

    def step(self) -> None:
        """Forward and backward; the loss is half the sum of squares of the last output, which so is its gradient."""
        for i in range(len(self.graph)):
            self.forward(i)
        last = len(self.graph) - 1
        if last in self.outputs:
            self.gradients[last] = self.outputs[last].detach()
        for i in reversed(range(len(self.graph))):
            self.backward(i)
        for _, work in self.leaving:
            work.wait()

    def forward(self, i: int) -> None:
        """Operator i where it is; where its output is needed, the message."""
        if self.choice[i] != self.rank:
            if self.users(i, self.rank):
                self.receive(i, self.choice[i])
            return
        came = [self.landed(k) for k in self.graph[i][1]] or [batch()]
        parts = [one.detach().requires_grad_() for one in came]
        self.inputs.update({(i, k): one for k, one in zip(self.graph[i][1], parts, strict=False)})
        self.outputs[i] = apply(torch.stack(parts).sum(0), self.weights[i])
        for rank in sorted(set(self.choice) - {self.rank}):
            if self.users(i, rank):
                self.send(self.outputs[i].detach(), rank)

    def landed(self, i: int) -> torch.Tensor:
        """The output of operator i, on a rank that needs it."""
        if i in self.coming:
            for tensor, work in self.coming.pop(i):
                work.wait()
                self.outputs[i] = tensor
        return self.outputs[i]

    def backward(self, i: int) -> None:
        """Operator i's where it is, and the messages of the gradients of what it was given."""
        if self.choice[i] == self.rank:
            for tensor, work in self.coming.pop(i, []):
                work.wait()
                self.add(i, tensor)
            self.outputs[i].backward(self.gradients[i])
            for k in self.graph[i][1]:
                gradient = self.inputs[i, k].grad
                assert gradient is not None, "backward has just made it"
                self.add(k, gradient)
        for k in self.graph[i][1]:
            # With its first user all of this rank have run.
            if self.choice[k] == self.choice[i] or i != self.users(k, self.choice[i])[0]:
                continue
            if self.choice[i] == self.rank:
                self.send(self.gradients[k], self.choice[k])
            elif self.choice[k] == self.rank:
                self.receive(k, self.choice[i])

    def add(self, i: int, gradient: torch.Tensor) -> None:
        """To what has come of the gradient of output i."""
        self.gradients[i] = self.gradients[i] + gradient if i in self.gradients else gradient

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """In the background; the tensor lives until the step's end."""
        import torch.distributed as dist

        self.leaving.append((tensor, dist.isend(tensor, to)))

    def receive(self, i: int, source: int) -> None:
        """In the background: an output or a part of its gradient, in the order in which the other rank sends."""
        import torch.distributed as dist

        tensor = torch.empty(SAMPLES, WIDTH)
        self.coming.setdefault(i, []).append((tensor, dist.irecv(tensor, source)))
