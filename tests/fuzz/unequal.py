"""Gradients weighted by samples, as the fuzz test runs them: apart, so that the other families keep their programs."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.heterogeneous import WeightedDataParallel
from tests.fuzz.fitting import unfit_own_buffers
from tests.fuzz.techniques import TINY, Technique, plain_sgd, zero_optimizer


class OneSampleEach(WeightedDataParallel):
    """With as many samples on each rank, weights are 1, and losses need none."""

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        self.begin(1)
        self.weigh(torch.ones(()))  # as a step asks for, once for all losses
        return super().forward(*inputs, **keywords)


def weighted(name: str, optimizer: Any = plain_sgd, **options: Any) -> Technique:
    return Technique(
        name,
        lambda model, program: OneSampleEach(model, **options),
        optimizer,
        unfit=unfit_own_buffers,
    )


UNEQUAL: dict[str, Technique] = {
    t.name: t
    for t in (
        weighted("weighted by samples", bucket_cap_mb=TINY),
        weighted("weighted by samples, finding unused", find_unused_parameters=True),
        weighted("ZeRO-1, unused, by samples", zero_optimizer, find_unused_parameters=True),
    )
}
