"""A cluster's accelerators and wires, by name from published figures, or by numbers.

    Hardware.of("H100 SXM")                      Hardware.of("A100 SXM 40", network="GCP A3 Mega")
    Hardware(peak=125e12, memory=32e9, hbm=0.9e12, sms=80, inside=150e9, like="A100")

Rates are data sheets'; `reached` is the most that a matrix product was measured to reach (hw_specs.json). What was not
measured, and depends on more than the card, is a range: a prediction then has an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dtcourse.planner.measured import Measured
from dtcourse.planner.ranges import Range, check_ranges, ends
from dtcourse.simulator.cluster import NVLINK
from dtcourse.simulator.hardware import accelerator, published
from dtcourse.simulator.memory import device_memory

# What hw_specs.json lacks, from NVIDIA's data sheets of each card (dense rates, in 1e12 operations per second): SMs,
# float32 without and with TF32, 8 bits, and bytes per second of one of the DGX's eight network cards. A GH200 and a
# GB200 come in nodes of many sizes and with many networks: these are asked for.
SHEETS: dict[str, dict[str, float]] = {
    "A100 SXM": {"sms": 108, "fp32": 19.5, "tf32": 156, "fp8": 0, "card": 25e9},
    "A100 SXM 40": {"sms": 108, "fp32": 19.5, "tf32": 156, "fp8": 0, "card": 25e9},
    "H100 SXM": {"sms": 132, "fp32": 67, "tf32": 494.5, "fp8": 1979, "card": 50e9},
    "H200 SXM": {"sms": 132, "fp32": 67, "tf32": 494.5, "fp8": 1979, "card": 50e9},
    "GH200": {"sms": 132, "fp32": 67, "tf32": 494.5, "fp8": 1979, "card": 0},
    "B200": {"sms": 148, "fp32": 75, "tf32": 1125, "fp8": 4500, "card": 50e9},
    "GB200": {"sms": 148, "fp32": 80, "tf32": 1250, "fp8": 5000, "card": 0},
}
# Whose wires, and whose share of them for NCCL, in the simulator's tables.
LIKE = {
    "A100 SXM": "A100",
    "A100 SXM 40": "A100",
    "H100 SXM": "H100",
    "H200 SXM": "H200",
    "GH200": "H200",
    "B200": "B200",
    "GB200": "B200",
}
# Names under which hw_specs.json has the measured maximum, and device_memory the bytes.
_MEASURED = {"H100 SXM": "H100 SXM (=H200)", "H200 SXM": "H100 SXM (=H200)"}
_MEMORY = {"A100 SXM": "A100 SXM, 80 GB", "H100 SXM": "H100 SXM, 80 GB", "H200 SXM": "H200, 141 GB"}
# A100 40GB: NVIDIA's data sheet, 1,555 GB/s. GH200: the one with 96 GB of HBM3.
_OWN = {
    "A100 SXM 40": {"memory": 40e9, "hbm": 1.555e12},
    "GH200": {"memory": 96e9, "hbm": 4.0e12},
}

# The part of the peak that the best product reached, bf16 and 8 bits, over all NVIDIA cards measured (hw_specs.json).
REACHED = Range(0.73, 0.80, 0.87)
REACHED_8BIT = Range(0.70, 0.73, 0.77)
# What is left of the best product that was ever measured. FITTED to MPT's runs, on which products are most of a step;
# the range is wider than what leaving out a size or a number of GPUs moves it by.
SUSTAINED = Range(0.80, 0.87, 0.95)
# Of the rate of a data sheet: from a chain of small kernels to one long copy (an estimate, not fitted).
HBM_SHARE = Range(0.80, 0.85, 0.92)
# Seconds per kernel: the driver's alone, an eager framework's, and one's with hooks on each module (runs.py).
LAUNCH = Range(5e-6, 15e-6, 45e-6)
# Estimates of the three fields below, each half or twice as much.
FILL, LEAST, CHANNELS = Range(128, 256, 512), Range(1e-6, 2e-6, 4e-6), Range(8, 16, 32)
# Seconds of a short collective beside NCCL's own figure: none, or what was measured (8 H200: 39 us of which NCCL counts
# 15; 4 nodes with EFA: 360 of which it counts 70; simulator/cluster_collectives.py).
LATENCY_INSIDE = Range(0.0, 0.0, 24e-6)
LATENCY_BETWEEN = Range(0.0, 0.0, 290e-6)
# Bytes that no allocator of PyTorch counts: CUDA's context, libraries' workspaces, NCCL's buffers (an estimate).
CONTEXT = Range(0.6e9, 1.5e9, 4e9)


@dataclass(frozen=True)
class Hardware:
    """Numbers of type Any may be a Range.

    peak:       operations per second of 16-bit floats, dense, as data sheets have it
    memory:     bytes of a device
    hbm:        bytes per second of its memory, as data sheets have it
    sms:        multiprocessors, over which a product's tiles are given out
    inside:     bytes per second that a device sends to its node, one way
    like:       whose share of wires NCCL counts, and whose kernels these are: "A100", "H100", "H200", "B200"
    peak_32, peak_tf32: operations per second of 32-bit floats, and of these in TF32; 0: not said
    peak_8bit:  the same of 8-bit floats; 0: it has none, or it is not said
    reached, reached_8bit: the part of the peak that the best matrix product reaches
    hbm_share:  the part of `hbm` that a kernel which only moves bytes reaches
    launch:     seconds of the host per kernel, the framework's included
    sustained:  part of `reached` that is left in a long run, whose clock the power limit sets
    clock:      part of its usual rate that products and attention have (a power limit below the usual)
    fill:       inner numbers' worth of time in which a product's tile starts and ends
    least:      seconds; no kernel is shorter on the device
    node_size:  devices of a node
    cards:      network cards of a node; None: one for each device
    card:       bytes per second of one, one way; 0: not said, and all devices must be of one node
    latency_inside, latency_between: seconds of a collective beside NCCL's own figure, inside a node and between nodes
    achieved:   part of what NCCL's model says of the network that is left (other jobs, the switches' hashing)
    pod:        devices beyond which the network is oversubscribed; 0: nowhere
    oversubscription: how many times, above a pod
    channels:   multiprocessors that a collective takes from what is computed meanwhile
    context:    bytes that are no tensor's: CUDA's context, workspaces of libraries, NCCL's buffers
    measured:   seconds of kernels, blocks or collectives that were measured, for those of the planner's own
    name:       as it is printed
    """

    peak: Any
    memory: Any
    hbm: Any
    sms: int
    inside: Any
    like: str
    peak_32: Any = 0.0
    peak_tf32: Any = 0.0
    peak_8bit: Any = 0.0
    reached: Any = REACHED
    reached_8bit: Any = REACHED_8BIT
    hbm_share: Any = HBM_SHARE
    launch: Any = LAUNCH
    sustained: Any = SUSTAINED
    clock: Any = 1.0
    fill: Any = FILL
    least: Any = LEAST
    node_size: int = 8
    cards: int | None = None
    card: Any = 0.0
    latency_inside: Any = LATENCY_INSIDE
    latency_between: Any = LATENCY_BETWEEN
    achieved: Any = 1.0
    pod: int = 0
    oversubscription: Any = 1.0
    channels: Any = CHANNELS
    context: Any = CONTEXT
    measured: Measured | None = None
    name: str = "by numbers"

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.cards is None:
            object.__setattr__(self, "cards", self.node_size)
        if self.like not in NVLINK:
            raise ValueError(f"like is one of {', '.join(NVLINK)}; got {self.like!r}")
        parts = ("reached", "reached_8bit", "hbm_share", "sustained", "clock", "achieved")
        above = ("peak", "memory", "hbm", "sms", "inside", "node_size", "cards", *parts)
        for field in fields(self):
            for value in ends(getattr(self, field.name)):
                if not value >= 0:
                    raise ValueError(f"{field.name} is 0 or more; got {value}")
                if field.name in parts and field.name != "clock" and value > 1:
                    raise ValueError(f"{field.name} is a part, at most 1; got {value}")
                if field.name == "oversubscription" and value < 1:
                    raise ValueError(f"oversubscription is 1 (none) or more; got {value}")
                if not value and field.name in above:
                    raise ValueError(f"{field.name} is above 0; got {value}")

    @classmethod
    def of(cls, name: str, network: str | None = None, **changes: Any) -> Hardware:
        """A published card, in nodes of 8 where there are such. changes: fields that differ.

        network: a row of hw_specs' "inter_node", which its node has in all; None: that of NVIDIA's DGX with this card
                 (DGX A100: eight of 200 Gb/s; DGX H100, H200, B200: eight of 400). A GH200 and a GB200 have no such
                 nodes: say node_size, and card or network

        Raises ValueError for a card that is not known here, with those that are and what would have to be said of it.
        """
        if name not in LIKE:
            needed = (
                "peak, memory, hbm, sms, inside, like (and for more than a node: node_size, cards, card; "
                "for 8 or 32 bits: peak_8bit, peak_32 or peak_tf32; better with reached, hbm_share, launch)"
            )
            raise ValueError(
                f"of {name!r} not all figures are published here; of {', '.join(LIKE)} they are. Say them: "
                f"Hardware({needed})"
            )
        specs, sheet = published("hw_specs"), SHEETS[name]
        if network not in (None, *specs["inter_node"]):
            raise ValueError(f"no network {network!r}; there are {', '.join(specs['inter_node'])}")
        if network and not sheet["card"] and "node_size" not in changes:
            raise ValueError(f"{name} comes in nodes of many sizes: say node_size beside network")
        size = changes.get("node_size") or (8 if sheet["card"] else 1)
        cards = changes.get("cards") or size
        card = accelerator(name.removesuffix(" 40"))
        best = specs["mamf_bf16_measured"][_MEASURED.get(name, name.removesuffix(" 40"))]
        best_8bit = specs["mamf_fp8_measured"].get(name)
        gb, tb = specs["memory"].get(name.removesuffix(" SXM"), (0, 0))
        known: dict[str, Any] = {
            "peak": card.flops,
            "memory": device_memory().get(_MEMORY.get(name, ""), gb * 1e9),
            "hbm": card.bandwidth or tb * 1e12,
            "sms": int(sheet["sms"]),
            "inside": 1e9 * specs["intra_node_unidir_GBps"][NVLINK[LIKE[name]]],
            "reached": 1e12 * best / card.flops,
            "peak_32": 1e12 * sheet["fp32"],
            "peak_tf32": 1e12 * sheet["tf32"],
            "peak_8bit": 1e12 * sheet["fp8"],
            "reached_8bit": best_8bit / sheet["fp8"] if best_8bit else REACHED_8BIT,
            "card": 1e9 * specs["inter_node"][network] / cards if network else sheet["card"],
            "node_size": size,
            "like": LIKE[name],
            "name": name,
        }
        return cls(**(known | _OWN.get(name, {}) | changes))

    def rate(self, bits: int, tf32: bool = False) -> float:
        """Dense operations per second of floats of 8, 16 or 32 bits. ValueError where it is not said."""
        field = {8: "peak_8bit", 16: "peak", 32: "peak_tf32" if tf32 else "peak_32"}[bits]
        if not getattr(self, field):
            raise ValueError(
                f"{field} of {self.name} is 0: it multiplies no {bits}-bit floats, or nobody has said how fast. "
                f"Say {field}, or another precision"
            )
        return getattr(self, field)

    def check_nodes(self, devices: int) -> None:
        """Raises ValueError where devices are more than a node and the network between nodes was not said."""
        if (
            devices > self.node_size
            and not self.card
            and not (self.measured and self.measured.collective)
        ):
            raise ValueError(
                f"{devices} devices are more than a node of node_size({self.node_size}), and of {self.name} no network "
                "between nodes is known: say node_size, cards (of a node) and card (bytes per second of one)"
            )
