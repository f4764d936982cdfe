"""Exercise 23b-1's closed form is what is counted when such a model runs, with PyTorch's own checkpoints."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from dtcourse.course.checks.lesson_23b_measuring_a_job.utilisation import Shape, step_seconds
from dtcourse.models.transformer import Transformer, TransformerConfig
from dtcourse.profiling.operators import count


@pytest.mark.parametrize("checkpointed", [0, 2])
def test_needed_and_executed_are_what_is_counted(checkpointed):
    shape = Shape(batch=2, length=16, width=32, layers=3, hidden=64, kv_width=16, vocab=50)
    model = Transformer(
        TransformerConfig(
            shape.vocab, shape.width, shape.layers, 4, 2, shape.hidden, shape.length,
            tied=False, bias=False, norm="rms", mlp="swiglu",
        )
    )  # fmt: skip
    for block in model.blocks[:checkpointed]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    tokens = torch.zeros(shape.batch, shape.length, dtype=torch.long)
    counted = count(lambda: model.loss(tokens, tokens).backward())
    assert counted.model_flops == shape.needed()
    assert counted.flops == shape.executed(checkpointed)


def test_a_step_is_its_slowest_ranks_and_the_first_one_does_not_count():
    assert step_seconds([[9.0, 1.0, 2.0], [9.0, 3.0, 1.0]]) == 2.5
