"""The kernels before the first block and behind the last: the embedding, and the head with its loss."""

from __future__ import annotations

import math

from dtcourse.planner.block import accumulated
from dtcourse.planner.kernels import Kernel, linear, moving
from dtcourse.planner.setting import Setting


def head(setting: Setting) -> list[Kernel]:
    """The last norm, the output layer and the loss of one micro-batch."""
    s, model, hardware, software = setting, setting.model, setting.hardware, setting.software
    N, b = s.tokens, s.element
    columns = math.ceil(model.vocabulary / s.layout.tp)
    logits = s.logits
    found = linear(N, columns, model.hidden, hardware, element=b, tf32=s.precision.tf32)
    # Bytes per logit, forward and backward: to float32, logarithms of probabilities, their gradient, and back.
    forward, backward, launches = {
        "eager": (b + 4 + 8, 12 + 4 + b, 3),
        "loss_parallel": (b + 4 + 8, 12 + 4 + b, 9),
        "vocab_parallel": (b + 4 + 4 + 8 + 8 + 4 + 8, 8 + 4 + b, 9),
        "fused": (b + 4, b + b + 4, 1),
    }[s.loss]
    if software.compiled:
        forward, backward = min(forward, b + 8), min(backward, b + 8)
    found.append(moving(logits * forward, hardware, launches=launches))
    found.append(moving(logits * backward, hardware, launches=launches, part="input"))
    if added := accumulated(s, columns * model.hidden):
        found.append(moving(added, hardware, part="weight"))
    norm = s.rows * model.hidden * b
    found += [moving(2 * norm, hardware), moving(4 * norm, hardware, launches=2, part="input")]
    return found


def embedding(setting: Setting) -> list[Kernel]:
    """The tables' rows of one micro-batch, and a dropout."""
    s, model, hardware = setting, setting.model, setting.hardware
    passes = 2 + 3 * (model.positions == "learned") + 2 * model.dropout
    nbytes = s.tokens * model.hidden * passes * s.element
    rows = math.ceil(model.vocabulary / s.layout.tp)
    found = [
        moving(nbytes, hardware, launches=passes // 2 + 1),
        moving(nbytes, hardware, launches=passes // 2 + 1, part="input"),
    ]
    if added := accumulated(s, rows * model.hidden):
        found.append(moving(added, hardware, launches=2, part="weight"))
    return found
