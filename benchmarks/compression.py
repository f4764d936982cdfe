"""Compression against a copy of the same memory: how many bytes a second a method takes in, and gives back,
on one thread.

    python benchmarks/compression.py --pairs 7          # writes benchmarks/results/compression.json

Ratios are of times, a method's over the copy's: 4.00 is a quarter of a copy's speed. Processor time of this thread is
what is counted, so that other work on the machine adds what it takes from the caches and no more.

decompress takes fresh memory, and 100 MB of that are more pages to make than all else takes (a vector of zeros that is
as long takes about as long); "into" decompresses into memory that is there, as the copy does.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch

from dtcourse.compression import (
    QSGD,
    AdaptiveThreshold,
    Compressor,
    CountSketch,
    Float8,
    HalfPrecision,
    IntegerQuantizer,
    OneBitSGD,
    Payload,
    RandomK,
    RandomProjection,
    SampledThreshold,
    ScaledSign,
    TernGrad,
    Threshold,
    TopBlocks,
    TopK,
)
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "compression.json"
METHODS: dict[str, Compressor] = {
    "float16": HalfPrecision(),
    "float8": Float8(),
    "8 bits, blocks": IntegerQuantizer(8),
    "8 bits, one scale": IntegerQuantizer(8, block=1 << 40),
    "8 bits by chance": IntegerQuantizer(8, stochastic=True),
    "4 bits": IntegerQuantizer(4),
    "2 bits by chance": IntegerQuantizer(2, stochastic=True),
    "QSGD, 7 levels": QSGD(7),
    "TernGrad": TernGrad(),
    "sign": ScaledSign(),
    "1-bit SGD": OneBitSGD(),
    "top 1%": TopK(0.01),
    "above a threshold": Threshold(2.576),
    "threshold sampled": SampledThreshold(0.01),
    "threshold kept": AdaptiveThreshold(0.01),
    "top 1% of blocks": TopBlocks(0.01),
    "random 1%": RandomK(0.01),
    "projection 1%": RandomProjection(0.01),
    "count-sketch 5%": CountSketch(0.05),
}


def main() -> None:
    """Runs it, prints a line a method and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = pairs.begin(
        f"{options.bytes / 1e6:.0f} MB of float32 on one thread: processor time "
        "/ a copy's, median and quartiles of pairs"
    )
    x = torch.randn(options.bytes // 4)
    room = torch.empty_like(x)
    payloads = {name: method.compress(x) for name, method in METHODS.items()}

    def copied() -> float:
        start = time.thread_time()
        room.copy_(x)
        return time.thread_time() - start

    def compressed(method: Compressor) -> float:
        start = time.thread_time()
        method.compress(x)
        return time.thread_time() - start

    def decompressed_into(method: Compressor, payload: Payload) -> float:
        start = time.thread_time()
        method.decompress_into(payload, room)
        return time.thread_time() - start

    def decompressed(method: Compressor, payload: Payload) -> float:
        start = time.thread_time()
        method.decompress(payload)
        return time.thread_time() - start

    for name, method in METHODS.items():
        ways = {
            "compress": partial(compressed, method),
            "decompress": partial(decompressed, method, payloads[name]),
            "into": partial(decompressed_into, method, payloads[name]),
        }
        times = pairs.in_turns(ways | {"copy": copied}, options.pairs)
        report[name] = {way: pairs.ratio(times[way], times["copy"], digits=2) for way in ways}
        words = ",  ".join(f"{way} {pairs.in_words(report[name][way])}" for way in ways)
        print(f"{name:18s} {words}", flush=True)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
