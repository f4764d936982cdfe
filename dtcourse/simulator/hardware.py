"""Published figures of accelerators and links, each with its source. Measured ones are the machine's own business.

The files in `published/` hold the numbers and where they come from ("provenance"); this module gives them units.
Bandwidths of links are one way, in bytes a second; 1 GB is 1e9 bytes, as vendors count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def published(name: str) -> dict[str, Any]:
    """One file of published figures, as it is: "hw_specs", "nccl_measured_busbw", "zero_1910.02054", ..."""
    folder = files("dtcourse.simulator") / "published"
    file = folder / f"{name}.json"
    if not file.is_file():
        known = sorted(
            f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")
        )
        raise ValueError(f"there are no published figures {name!r}; there are {', '.join(known)}")
    return json.loads(file.read_text())


@dataclass(frozen=True)
class Accelerator:
    """A card: dense bfloat16 operations per second, bytes per second of its memory, and where they come from."""

    name: str
    flops: float
    bandwidth: float | None  # None where nothing is published for it
    source: str


# What the source calls the same card in its table of memories.
_IN_MEMORY_TABLE = {"A100 SXM": "A100 SXM 80", "H200 SXM": "H200", "GH200": None}


def accelerator(name: str) -> Accelerator:
    """The published peak rates of a card: "A100 SXM", "H100 SXM", "MI300X", ... They are data sheets', and no step
    comes near them. Raises ValueError for another name, with those there are.
    """
    specs = published("hw_specs")
    peaks = specs["bf16_dense_tflops"]
    if name not in peaks:
        raise ValueError(f"no peak rate is published here for {name!r}; for {', '.join(peaks)}")
    row = specs["memory"].get(_IN_MEMORY_TABLE.get(name, name))
    bandwidth = None if row is None else row[1] * 1e12
    return Accelerator(name, peaks[name] * 1e12, bandwidth, specs["provenance"])


@dataclass(frozen=True)
class Interconnect:
    """A link: bytes a second one way for one accelerator, and where the figure comes from."""

    name: str
    bandwidth: float
    kind: str  # "inside a node" or "between nodes"
    source: str


def links() -> dict[str, Interconnect]:
    """The published links. Those between nodes are given for a node of 8 accelerators; here is one's share."""
    specs = published("hw_specs")
    source = specs["provenance"]
    found = {}
    for name, gigabytes in specs["intra_node_unidir_GBps"].items():
        if isinstance(gigabytes, list):  # two generations in one row
            continue
        found[name] = Interconnect(name, gigabytes * 1e9, "inside a node", source)
    for name, gigabytes in specs["inter_node"].items():
        found[name] = Interconnect(name, gigabytes * 1e9 / 8, "between nodes", source)
    return found


def ethernet(gigabits: float) -> Interconnect:
    """Ethernet (or InfiniBand) by its name: 100 Gb/s is 12.5 GB/s, by definition and before any overhead."""
    if not gigabits > 0:
        raise ValueError(f"a link's rate is above 0 Gb/s; got {gigabits}")
    return Interconnect(
        f"{gigabits:g} Gb/s", gigabits * 1e9 / 8, "between nodes", "by definition: 8 bits a byte"
    )


def measured_all_reduce() -> list[tuple[int, float]]:
    """NCCL's all-reduce on 8 H200 with NVLink, as measured and published: (bytes, bus bandwidth in bytes a second)."""
    rows = published("nccl_measured_busbw")["h200_8gpu_allreduce_payload_busbw"]
    return [(int(size), gigabytes * 1e9) for size, gigabytes in rows]
