"""parallelize against PyTorch's parallelize_module: time of a training step, in pairs, in one run.

    python benchmarks/tensor_parallel.py --pairs 12        # writes benchmarks/results/tensor_parallel.json

Both cut the same transformer: heads, MLPs, vocabulary of embedding and output layer; logits are gathered in both, and
the loss is computed on all ranks. Ours names attention and MLP as regions; PyTorch's plan has a style for each layer,
with DTensors as parameters, and prepares what several layers of a region share, so that its gradient is summed once.
Steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the same to both; what is reported is
the median of the pairs' ratios: below 1.0 ours is faster. The optimizer is timed apart, because PyTorch's works on
DTensors, which cost time for each parameter.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from dtcourse import device, launch
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from dtcourse.tensor_parallel import parallelize, transformer_plan
from reporting import pairs, training

RESULTS = Path(__file__).parent / "results" / "tensor_parallel.json"
KINDS = ("ours", "torch")


def build(kind: str, config: TransformerConfig) -> nn.Module:
    """The same model, cut by one of the two."""
    model = Transformer(config).to(device.current())
    mesh = init_device_mesh(device.current().type, (dist.get_world_size(),))
    if kind == "ours":
        return parallelize(model, transformer_plan(model), mesh)
    first, both = (Replicate(),), (Replicate(), None)  # the MLP's input, and the attention's two
    plan: dict[str, Any] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.attention": PrepareModuleInput(input_layouts=both, desired_input_layouts=both),
        "blocks.*.mlp": PrepareModuleInput(input_layouts=first, desired_input_layouts=first),
        **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "blocks.*.attention.output": RowwiseParallel(),
        "blocks.*.mlp.gate": ColwiseParallel(),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    if config.mlp == "gelu":
        del plan["blocks.*.mlp.gate"]
    return parallelize_module(model, mesh, plan)


def compare(config: TransformerConfig, batch: int, length: int, count: int) -> dict[str, Any]:
    """Alternating steps of both on this rank: seconds of each."""
    models = {}
    for kind in KINDS:
        model = build(kind, config)
        # A foreach optimizer takes tensors of one kind; PyTorch's plan leaves norms plain tensors beside its DTensors.
        models[kind] = model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step(kind: str) -> tuple[float, float]:
        model, optimizer = models[kind]
        return pairs.timed_step(lambda: model.loss(tokens_BS[:, :-1], tokens_BS[:, 1:]), optimizer)

    torch.manual_seed(0)  # the same tokens on all ranks
    tokens_BS = torch.randint(config.vocab, (batch, length + 1), device=device.current())
    return pairs.in_turns({kind: partial(step, kind) for kind in models}, count)


def main() -> None:
    """Runs the comparison, prints one line a quantity and writes the results file."""
    parser = training.parser(__doc__, RESULTS, "--pairs")
    options = parser.parse_args()
    config = TransformerConfig(
        vocab=1024,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=options.width // 32,
        max_length=options.length,
        tied=False,
        bias=False,
        positions="rotary",
        norm="rms",
        mlp="swiglu",
    )
    work = (config, options.batch, options.length, options.pairs)
    parameters = parameter_count(Transformer(config))
    report = pairs.begin(
        f"{parameters / 1e6:.1f} million parameters on {options.ranks} ranks, tensor parallel, AdamW; ours / "
        "PyTorch's parallelize_module, median and quartiles over pairs of steps"
    )
    run = launch(compare, options.ranks, *work, timeout=600.0)
    report |= pairs.steps_compared(run)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
