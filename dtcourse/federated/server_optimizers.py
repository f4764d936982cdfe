"""What the server does with the mean change of its clients: takes it as it is, or as an optimizer's gradient.

    FedAvg(model, clients, work, server=FedAdam(lr=0.03))

A round's mean change delta is where the clients want to go: -delta is a gradient, in effect, over all their steps. So
any optimizer can take it (FedOpt). With server SGD of learning rate 1 this is FedAvg.

    m <- b1 m + (1 - b1) delta
    v <- v + delta^2                                   FedAdagrad
         b2 v + (1 - b2) delta^2                       FedAdam
         v - (1 - b2) delta^2 sign(v - delta^2)        FedYogi
    x <- x + lr m / (sqrt(v) + tau)

tau is how adaptive it is: it bounds a step of a number whose changes are small. v begins at tau^2. There is no
correction of the moments' start, unlike in torch.optim.Adam. Source: Reddi et al. (ICLR 2021, arXiv 2003.00295),
algorithm 2. Memory of the server: m and v, 2 N numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class ServerOptimizer(ABC):
    """Takes the server's steps. state_dict and load_state_dict as torch's optimizers have them."""

    lr: float

    def __init__(self, lr: float) -> None:
        if not lr > 0:
            raise ValueError(f"the server's lr is above 0; got {lr}")
        self.lr = lr
        self.state: dict[str, Tensor] = {}

    @abstractmethod
    def step(self, x: Tensor, delta: Tensor) -> Tensor:
        """The server's next x, (N,), after a mean change delta, (N,)."""

    def state_dict(self) -> dict[str, Any]:
        """The moments."""
        return {name: value.clone() for name, value in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.state = {name: value.clone() for name, value in state.items()}


class ServerSGD(ServerOptimizer):
    """x + lr m with m = momentum m + delta: FedAvg's own at lr=1 without momentum, FedAvgM with it."""

    def __init__(self, lr: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(lr)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is in [0, 1); got {momentum}")
        self.momentum = momentum

    def step(self, x: Tensor, delta: Tensor) -> Tensor:
        if self.momentum:
            before = self.state.get("m", torch.zeros_like(delta))
            delta = self.state["m"] = self.momentum * before + delta
        return x + self.lr * delta


class _Adaptive(ServerOptimizer):
    def __init__(self, lr: float, betas: tuple[float, float], tau: float) -> None:
        super().__init__(lr)
        if not all(0 <= b < 1 for b in betas) or not tau > 0:
            raise ValueError(f"the betas are in [0, 1) and tau is above 0; got {betas} and {tau}")
        self.betas, self.tau = betas, tau

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from delta's square."""

    def step(self, x: Tensor, delta: Tensor) -> Tensor:
        m = self.state.get("m", torch.zeros_like(delta))
        v = self.state.get("v", torch.full_like(delta, self.tau**2))
        m = self.state["m"] = self.betas[0] * m + (1 - self.betas[0]) * delta
        v = self.state["v"] = self.second_moment(v, delta.square())
        return x + self.lr * m / (v.sqrt() + self.tau)


class FedAdam(_Adaptive):
    """v follows delta^2, and forgets it."""

    def __init__(
        self, lr: float = 0.1, betas: tuple[float, float] = (0.9, 0.99), tau: float = 1e-3
    ) -> None:
        super().__init__(lr, betas, tau)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.betas[1] * v + (1 - self.betas[1]) * square


class FedYogi(FedAdam):
    """As FedAdam, but v changes by a part of delta^2 at most: it falls slowly after a round of large changes."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.betas[1]) * square * torch.sign(v - square)


class FedAdagrad(_Adaptive):
    """v is the sum of all rounds' delta^2: steps get shorter."""

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(lr, (momentum, 0.0), tau)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
