"""Which settings have the same blocks and ends, so that these are costed once."""

from __future__ import annotations

from typing import Any

from dtcourse.planner.network import expert_slices, experts_group, group
from dtcourse.planner.setting import Setting


def alike(setting: Setting) -> tuple[Any, ...]:
    """A key: settings with the same one have blocks and ends that cost, send and keep the same.

    They may differ in degrees, ZeRO, the pipeline, the micro-batch and recomputation, and in nothing else.
    """
    s, layout = setting, setting.layout
    scattered = layout.stage >= 2 and layout.shared > 1 and not layout.once
    return (
        layout.tp,
        layout.sequence_parallel,
        layout.cp,
        layout.ep,
        s.batch.micro_batch,
        s.software.recompute,
        layout.stage == 3,
        s.micro_batches > 1 and not scattered,
        group(layout, "tp"),
        group(layout, "cp"),
        experts_group(layout),
        expert_slices(layout),
        s.gathers_8bit and (layout.shared, layout.expert_copies),
        layout.expert_copies * layout.dp_replicate == 1,
    )
