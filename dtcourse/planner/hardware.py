"""A cluster's accelerators and wires, by name from published figures, or by numbers.

    Hardware.of("H100 SXM")                      Hardware.of("A100 SXM 40", network="GCP A3 Mega")
    Hardware(peak=125e12, memory=32e9, hbm=0.9e12, sms=80, inside=150e9, like="A100")

Rates are data sheets'; `reached` is the most that a matrix product was measured to reach (hw_specs.json).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from dtcourse.simulator.cluster import NVLINK
from dtcourse.simulator.hardware import accelerator, published
from dtcourse.simulator.memory import device_memory

# Multiprocessors of a card: the makers' own papers on each architecture.
SMS = {
    "A100 SXM": 108,
    "A100 SXM 40": 108,
    "H100 SXM": 132,
    "H200 SXM": 132,
    "GH200": 132,
    "B200": 148,
    "GB200": 148,
    "MI300X": 304,
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
_A100_40 = {"memory": 40e9, "hbm": 1.555e12}  # A100 40GB: NVIDIA's data sheet, 1,555 GB/s

# FITTED to MPT's runs, on which products are most of a step: what is left of the best product that was ever measured.
SUSTAINED = 0.89


@dataclass(frozen=True)
class Hardware:
    """Any number may be a Range.

    peak:       operations a second of the compute dtype, dense (bf16 as a rule), as data sheets have it
    memory:     bytes of a device
    hbm:        bytes a second of its memory, as data sheets have it
    sms:        multiprocessors, over which a product's tiles are given out
    reached:    the part of `peak` that the best matrix product reaches
    hbm_share:  the part of `hbm` that a kernel which only moves bytes reaches
    peak_8bit, reached_8bit: the same of 8-bit floats; 0: none
    launch:     seconds of the host per kernel, the framework's included
    sustained:  part of that which is left in a long run, whose clock the power limit sets
    clock:      part of the usual clock at which it runs (a power limit below the usual)
    node_size:  devices of a node
    inside:     bytes a second that a device sends to its node, one way
    cards:      network cards of a node
    card:       bytes a second of one, one way
    achieved:   part of what NCCL's model says of the network that is left (other jobs, the switches' hashing)
    pod:        devices beyond which the network is oversubscribed; 0: nowhere
    oversubscription: how many times, above a pod
    channels:   multiprocessors that a collective takes from what is computed meanwhile
    like:       whose share of wires NCCL counts, and whose kernels these are: "A100", "H100", "H200", "B200"
    name:       as it is printed
    """

    peak: Any
    memory: float
    hbm: Any
    sms: int
    inside: Any
    reached: Any = 0.8
    hbm_share: Any = 0.85
    peak_8bit: Any = 0.0
    reached_8bit: Any = 0.7
    launch: Any = 15e-6
    sustained: Any = SUSTAINED
    clock: Any = 1.0
    node_size: int = 8
    cards: int = 8
    card: Any = 25e9
    achieved: Any = 1.0
    pod: int = 0
    oversubscription: Any = 1.0
    channels: int = 16
    like: str = "H100"
    name: str = "by numbers"

    def __post_init__(self) -> None:
        if self.like not in NVLINK:
            raise ValueError(f"like is one of {', '.join(NVLINK)}; got {self.like!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise ValueError(f"{field.name} is 0 or more; got {value}")
        for name in ("peak", "memory", "hbm", "sms", "inside", "node_size", "cards"):
            if not getattr(self, name):
                raise ValueError(f"{name} is above 0; got {getattr(self, name)}")

    @classmethod
    def of(cls, name: str, network: str = "DGX H100 NDR 8x400Gb", **changes: Any) -> Hardware:
        """A published card in nodes of 8. network: a row of hw_specs' "inter_node". changes: fields that differ.

        Raises ValueError for a card that is not known here, with those that are and what would have to be said of it.
        """
        if name not in LIKE:
            needed = "peak, memory, hbm, sms, inside (and reached, like, cards, card)"
            raise ValueError(
                f"of {name!r} not all figures are published here; of {', '.join(LIKE)} they are. Say them: "
                f"Hardware({needed})"
            )
        specs = published("hw_specs")
        if network not in specs["inter_node"]:
            raise ValueError(f"no network {network!r}; there are {', '.join(specs['inter_node'])}")
        card = accelerator(name.removesuffix(" 40"))
        measured = specs["mamf_bf16_measured"]
        wires = 1e9 * specs["intra_node_unidir_GBps"][NVLINK[LIKE[name]]]
        eight = 1e12 * specs["fp8_dense_tflops"].get(name.replace("H200", "H100"), 0)
        best = 1e12 * specs["mamf_fp8_measured"].get(name, 0)
        gb, tb = specs["memory"].get(name.removesuffix(" SXM"), (0, 0))
        found = cls(
            peak=card.flops,
            memory=device_memory().get(_MEMORY.get(name, ""), gb * 1e9) or 96e9,
            hbm=card.bandwidth or tb * 1e12 or 4e12,
            sms=SMS[name],
            inside=wires,
            reached=1e12 * measured[_MEASURED.get(name, name.removesuffix(" 40"))] / card.flops,
            peak_8bit=eight,
            reached_8bit=best / eight if best and eight else 0.7,
            card=1e9 * specs["inter_node"][network] / 8,
            like=LIKE[name],
            name=name,
        )
        return replace(found, **(_A100_40 if name.endswith(" 40") else {}) | changes)
