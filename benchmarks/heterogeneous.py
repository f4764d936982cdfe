"""One slow rank among four: our balance against PyTorch's DDP, and against DDP without the slow rank.

    python benchmarks/heterogeneous.py            # writes benchmarks/results/heterogeneous.json

All three take the same steps: the mean gradient of the same batch, by SGD. DDP gives all ranks equal shares, and waits
for the slow one; dropping it leaves three equal shares, which are larger; ours begins with equal shares, measures, and
moves. Devices and network are emulated on the virtual clock, so seconds are the same on every machine. Which rank is
slow is each in turn. "settled" are the steps from the tenth on, "all" the first twenty with what it took to find out.
The ideal is total work / total speed, without messages.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.heterogeneous import Balance, WeightedDataParallel, ideal_seconds, measured, places
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "heterogeneous.json"
RANKS, STEPS, SETTLED, BATCH, WIDTH = 4, 20, 10, 768, 128
FAST = EmulatedDevice(flops=2e10, bandwidth=1e11)
NETWORK = EmulatedNetwork(latency=5e-6, bandwidth=1.25e9)


def build() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randint(10, (BATCH,), generator=generator)


def train(way: str, slow: int, group: Any) -> tuple[list[float], torch.Tensor]:
    """Seconds of each step on the emulated clock, and the weights in the end. group: all but the slow rank."""
    rank, inner = dist.get_rank(), build()
    others = [r for r in range(RANKS) if r != slow]
    balance = Balance(BATCH)
    model: Any = inner
    if way == "ours":
        model = WeightedDataParallel(inner)
    elif way == "DDP":
        model = DistributedDataParallel(inner)
    elif rank != slow:
        model = DistributedDataParallel(inner, process_group=group)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    took = []
    for step in range(STEPS):
        x, y = batch(step)
        dist.barrier()
        began = emulation.now()
        if way == "ours":
            mine = balance.mine
        elif way == "DDP":
            mine = places([BATCH // RANKS] * RANKS)[rank]
        else:
            shares = [BATCH // len(others) if r in others else 0 for r in range(RANKS)]
            mine = places(shares)[rank]
        x, y = x[mine.start : mine.stop], y[mine.start : mine.stop]
        optimizer.zero_grad()
        if way == "ours":
            with model.step(len(mine)):
                model.weigh(nn.functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            balance.after(model.seconds)
        elif mine:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        dist.barrier()
        took.append(emulation.now() - began)
    return took, nn.utils.parameters_to_vector(inner.parameters()).detach()


def compare(slow: int) -> dict[str, Any]:
    """Of a rank: seconds and weights by way, and the ideal seconds of a step."""
    group = dist.new_group([r for r in range(RANKS) if r != slow])
    found: dict[str, Any] = {way: train(way, slow, group) for way in ("ours", "DDP", "dropping")}
    inner, (x, y) = build(), batch(0)
    speeds = [
        one.speed
        for one in measured(lambda: nn.functional.cross_entropy(inner(x), y).backward(), BATCH, 1)
    ]
    return found | {"ideal": ideal_seconds(BATCH, speeds)}


def measure(factor: float) -> dict[str, Any]:
    """A row of the table: milliseconds of a step, over each place of the slow rank."""
    settled: dict[str, list[float]] = {}
    all_steps: dict[str, list[float]] = {}
    apart = 0.0
    for slow in range(RANKS):
        devices = [FAST.slower(factor) if rank == slow else FAST for rank in range(RANKS)]
        run = launch(compare, RANKS, slow, devices=devices, network=NETWORK, timeout=600.0)
        found = run[(slow + 1) % RANKS]  # one that takes part in all three
        for way in ("ours", "DDP", "dropping"):
            took, weights = found[way]
            settled.setdefault(way, []).append(statistics.mean(took[SETTLED:]) * 1e3)
            all_steps.setdefault(way, []).append(statistics.mean(took) * 1e3)
            apart = max(apart, float((weights - found["DDP"][1]).abs().max()))
        settled.setdefault("ideal", []).append(found["ideal"] * 1e3)
    row: dict[str, Any] = {
        "milliseconds, settled": {way: round(statistics.mean(s), 3) for way, s in settled.items()},
        "milliseconds, all": {way: round(statistics.mean(s), 3) for way, s in all_steps.items()},
        "largest difference of weights": f"{apart:.0e}",
    }
    for way in ("DDP", "dropping"):
        row[f"settled, against {way}"] = pairs.ratio(settled["ours"], settled[way])
        row[f"all, against {way}"] = pairs.ratio(all_steps["ours"], all_steps[way])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    report = pairs.begin(
        f"{RANKS} emulated ranks, one of them slower, each in turn; {BATCH} samples a step; milliseconds on the "
        "virtual clock, and ours / the other's"
    )
    print(f"{'slower':>6}  {'ideal':>6} {'ours':>6} {'DDP':>6} {'dropping':>8}   ours: all steps")
    for factor in (1.0, 1.5, 2.0, 3.0, 5.0):
        row = report[f"{factor:g} times slower"] = measure(factor)
        each = row["milliseconds, settled"]
        print(
            f"{factor:6g}  {each['ideal']:6.2f} {each['ours']:6.2f} {each['DDP']:6.2f} {each['dropping']:8.2f}   "
            f"{row['milliseconds, all']['ours']:6.2f}"
        )
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
