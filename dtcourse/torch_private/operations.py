"""What an operation is."""

from __future__ import annotations

from typing import Any

import torch

FOREACH_NORMS = (torch._foreach_norm, torch._amp_foreach_non_finite_check_and_unscale_)
ADDMM_ACTIVATION = torch.ops.aten._addmm_activation
FLASH_ATTENTION_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_ATTENTION_ON_CPU_BACKWARD = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
)
FUSED_ATTENTION_BACKWARD = (
    FLASH_ATTENTION_ON_CPU_BACKWARD,
    torch.ops.aten._scaled_dot_product_flash_attention_backward,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward,
)

# What a fake tensor is asked whenever C++ reads its device: no operation, and three of four that a traced rank runs.
DEVICE_OF = torch.ops.prim.device.default


def count_grouped_mm() -> None:
    """Has torch's FlopCounterMode count F.grouped_mm, which its own table leaves out and takes for nothing."""
    from torch.utils.flop_counter import (
        flop_registry,
        register_flop_formula,
    )  # not each rank wants it

    operation = torch.ops.aten._grouped_mm
    if operation not in flop_registry:

        @register_flop_formula(operation)  # type: ignore[untyped-decorator]
        def flops(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
            """Each row of a, or each column where all are summed, times each column of b."""
            return 2 * a.numel() * b[-1]


def packet_of(operation: Any) -> Any:
    """aten.add of aten.add.Tensor, say."""
    return operation._overloadpacket


def schema_of(operation: Any) -> Any:
    """Names and types of what it takes and gives, and what of that it changes."""
    return operation._schema
