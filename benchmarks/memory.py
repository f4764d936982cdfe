"""Checkpointing, loss scaling, autocast and offload by hand against PyTorch's: time of a training step, in pairs.

    python benchmarks/memory.py --pairs 12             # writes benchmarks/results/memory.json

Both sides of a pair run the same model on the same batch, one directly after the other, in turns which is first, so a
machine whose speed drifts does the same to both. Printed is the median of the pairs' ratios: below 1.0 ours is faster.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint as theirs
from torch import nn
from torch.autograd.graph import save_on_cpu

from dtcourse import device
from dtcourse.memory import (
    MATMULS,
    GradScaler,
    autocast,
    checkpoint,
    offload_activations,
)
from dtcourse.models import Transformer, TransformerConfig
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "memory.json"
Step = Callable[[], None]


def comparisons(config: TransformerConfig, batch: int) -> dict[str, tuple[Step, Step]]:
    """(ours, PyTorch's) by name; each a whole training step."""
    where = device.current()
    torch.manual_seed(0)
    model = Transformer(config).to(where)
    tokens_BS = torch.randint(config.vocab, (batch, config.max_length + 1), device=where)
    forwards = [block.forward for block in model.blocks]

    def loss() -> torch.Tensor:
        logits_BSV = model(tokens_BS[:, :-1])
        return nn.functional.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())

    def recompute(call: Callable[..., Any]) -> None:
        for block, forward in zip(model.blocks, forwards, strict=True):
            block.forward = partial(call, forward)
        try:
            model.zero_grad()
            loss().backward()
        finally:
            for block in model.blocks:
                del block.forward

    def under(context: Callable[[], Any]) -> None:
        model.zero_grad()
        with context():
            value = loss()
        value.backward()

    # Loss scaling alone: many gradients, no model.
    parameters = [nn.Parameter(torch.randn(256, 256, device=where)) for _ in range(64)]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    scalers = (
        GradScaler(where.type, growth_interval=4),
        torch.amp.GradScaler(where.type, growth_interval=4),
    )

    def scale(scaler: Any) -> None:
        scaler.scale(torch.ones((), device=where, requires_grad=True))
        for p in parameters:
            p.grad = torch.full_like(p, 65536.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    contexts = partial(theirs.create_selective_checkpoint_contexts, list(MATMULS))
    pytorch = partial(theirs.checkpoint, use_reentrant=False)
    return {
        "checkpoint": (partial(recompute, checkpoint), partial(recompute, pytorch)),
        "checkpoint, matrix products kept": (
            partial(recompute, partial(checkpoint, policy=MATMULS)),
            partial(recompute, partial(pytorch, context_fn=contexts)),
        ),
        "GradScaler, 64 gradients of 256 KiB": (partial(scale, scalers[0]), partial(scale, scalers[1])),
        "autocast to bfloat16": (
            partial(under, lambda: autocast(torch.bfloat16)),
            partial(under, lambda: torch.autocast(where.type, dtype=torch.bfloat16)),
        ),
        OFFLOAD: (partial(under, offload_activations), partial(under, to_the_host)),
    }  # fmt: skip


# Where host and device are one memory, save_on_cpu copies nothing: tensor.cpu() is the tensor. What PyTorch has for a
# disk is the recipe of its tutorial on hooks for saved tensors: torch.save into a file for each.
OFFLOAD = "offload_activations against save_on_cpu" if device.is_gpu() else (
    "offload_activations against torch.save in hooks"
)  # fmt: skip


class _SavedFile:
    """One saved tensor in a file of its own, which goes with it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        descriptor, self.name = tempfile.mkstemp()
        os.close(descriptor)
        torch.save(tensor, self.name)

    def load(self) -> torch.Tensor:
        return torch.load(self.name)  # type: ignore[no-any-return]

    def __del__(self) -> None:
        os.remove(self.name)


def to_the_host() -> Any:
    """PyTorch's offload: pinned memory for a GPU, files where there is none. Parameters stay, as in ours."""
    if device.is_gpu():
        return save_on_cpu(pin_memory=True)
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor if isinstance(tensor, nn.Parameter) else _SavedFile(tensor),
        lambda packed: packed.load() if isinstance(packed, _SavedFile) else packed,
    )


def seconds(step: Step) -> float:
    device.synchronize()
    start = time.perf_counter()
    step()
    device.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Runs the comparisons, prints a line each, and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    config = TransformerConfig(
        vocab=256, n_layers=options.layers, d_model=options.width, n_heads=4, max_length=options.length
    )  # fmt: skip
    report = pairs.begin(
        "seconds of a training step, ours divided by PyTorch's: median and quartiles of paired steps"
    )
    report["options"] = vars(options)
    report["machine"]["threads"] = torch.get_num_threads()
    for name, (ours, pytorchs) in comparisons(config, options.batch).items():
        timed = {"ours": partial(seconds, ours), "torch": partial(seconds, pytorchs)}
        times = pairs.in_turns(timed, options.pairs)
        found = pairs.ratio(times["ours"], times["torch"], digits=2)
        report[name] = found | {"milliseconds": pairs.milliseconds(times, digits=2)}
        print(f"{name:42s} {pairs.in_words(found)}", flush=True)
    report["machine"]["load_after"] = round(os.getloadavg()[0], 1)
    pairs.write(report, RESULTS)


if __name__ == "__main__":
    main()
