"""Experts as grouped products against PyTorch's F.grouped_mm, and against a loop over experts, in pairs, in one run.

    python benchmarks/grouped_experts.py --pairs 12        # writes benchmarks/results/grouped_experts.json

The work is that of one layer of experts without biases, forward and backward: up, GELU, down. Loads are balanced (all
experts have as many rows) or Zipf's (expert i has 1/i of what the first has). What is reported is the median of the
pairs' ratios: below 1.0 ours is faster. Seconds are the process's own processor time on one thread, which what else
runs on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse.grouped_mm import grouped_mm
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "grouped_experts.json"
SHAPES = {  # experts, rows, d_model, d_ff
    "8 experts": (8, 2048, 256, 512),
    "64 experts": (64, 2048, 64, 128),
}


def zipf(num_experts: int, rows: int) -> Tensor:
    """Rows of each expert, the i-th with 1/i of the first's, as nearly as whole rows allow."""
    shares_E = 1 / torch.arange(1, num_experts + 1, dtype=torch.double)
    counts_E = (shares_E / shares_E.sum() * rows).long()
    counts_E[0] += rows - counts_E.sum()
    return counts_E


def torchs(x_RD: Tensor, w_EDF: Tensor, counts_E: Tensor) -> Tensor:
    return F.grouped_mm(x_RD, w_EDF, offs=counts_E.cumsum(0).int())


def loop(x_RD: Tensor, w_EDF: Tensor, counts_E: Tensor) -> Tensor:
    parts = x_RD.split(counts_E.tolist())
    return torch.cat([rows @ w_EDF[e] for e, rows in enumerate(parts)])


PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ours": grouped_mm,
    "torch": torchs,
    "loop": loop,
}


def compare(shape: tuple[int, int, int, int], load: str, num_pairs: int) -> dict[str, list[float]]:
    """Seconds of a step in each way, alternating."""
    E, R, D, width = shape
    counts_E = zipf(E, R) if load == "Zipf" else torch.full((E,), R // E)
    make = torch.Generator().manual_seed(0)
    sizes = (R, D), (E, D, width), (E, width, D)
    x_RD, up, down = (torch.randn(s, generator=make).requires_grad_() for s in sizes)
    grad_RD = torch.randn(R, D, generator=make)

    def step(product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
        start = time.process_time()
        product(F.gelu(product(x_RD, up, counts_E)), down, counts_E).backward(grad_RD)
        seconds = time.process_time() - start
        x_RD.grad = up.grad = down.grad = None
        return seconds

    return pairs.in_turns({name: partial(step, each) for name, each in PRODUCTS.items()}, num_pairs)


def main() -> None:
    """Runs the comparison, prints one line a shape and load and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=58)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = pairs.begin(
        "experts forward and backward in float32 on one thread, processor time; ours / PyTorch's F.grouped_mm, "
        "median and quartiles over pairs"
    )
    for name, shape in SHAPES.items():
        for load in ("balanced", "Zipf"):
            times = compare(shape, load, options.pairs)
            found: dict[str, Any] = {"experts, rows, d_model, d_ff": shape}
            found["torch"] = pairs.ratio(times["ours"], times["torch"])
            found["median of ours / loop"] = pairs.ratio(times["ours"], times["loop"])["ratio"]
            found["milliseconds"] = pairs.milliseconds(times, 2)
            report[f"{name}, {load}"] = found
            print(
                f"{name}, {load:9s} {found['milliseconds']['ours']:7.1f} ms a step: "
                f"{pairs.in_words(found['torch'])} of torch's, {found['median of ours / loop']:.2f} of the loop's"
            )
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
