"""A cluster of like nodes: GPUs on an NVSwitch, network cards that they share, and what NCCL makes use of.

Rates of data sheets are what a wire could carry. NCCL's rings use less, by figures of its own source (topo.h and
search.cc, in published/nccl_model.json): 371 of an H100's 450 GB/s of NVLink, 384 of eight cards' 400.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.simulator import nodes
from dtcourse.simulator.hardware import published
from dtcourse.simulator.topology import Topology

NVLINK = {
    "A100": "NVLink3 A100",
    "H100": "NVLink4 H100",
    "H200": "NVLink4 H100",
    "B200": "NVLink5 B200",
}


@dataclass(frozen=True)
class Cluster:
    """`nodes` machines of `gpus` GPUs on an NVSwitch. Rates are one way, in bytes per second, as data sheets have them.

    inside: of one GPU to the NVSwitch
    cards:  network cards per node, shared equally by its GPUs; 0 where there is one node
    card:   of one network card
    gpu:    whose share of a wire NCCL counts: "A100", "H100", "H200" or "B200"
    """

    nodes: int
    gpus: int
    inside: float
    cards: int = 0
    card: float = 0.0
    gpu: str = "H100"

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1:
            raise ValueError(
                f"a cluster has 1 node or more of 1 GPU or more; got {self.nodes} of {self.gpus}"
            )
        if self.gpu not in NVLINK:
            raise ValueError(f"NCCL's figures are of {', '.join(NVLINK)}; got {self.gpu!r}")
        if not self.inside > 0:
            raise ValueError(f"inside is above 0 bytes per second; got {self.inside}")
        if self.nodes > 1 and not (self.cards >= 1 and self.card > 0):
            raise ValueError(
                f"{self.nodes} nodes need 1 network card or more of above 0 bytes per second; "
                f"got {self.cards} of {self.card}"
            )

    @classmethod
    def of(
        cls,
        gpu: str,
        nodes: int = 1,
        gpus: int = 8,
        network: str = "DGX H100 NDR 8x400Gb",
        cards: int = 8,
    ) -> Cluster:
        """From published figures. network: a row of hw_specs' "inter_node", what a node sends over its cards."""
        specs = published("hw_specs")
        if gpu not in NVLINK:
            raise ValueError(f"NCCL's figures are of {', '.join(NVLINK)}; got {gpu!r}")
        if network not in specs["inter_node"]:
            raise ValueError(f"no network {network!r}; there are {', '.join(specs['inter_node'])}")
        if cards < 1:
            raise ValueError(f"a node has 1 network card or more; got {cards}")
        inside = 1e9 * specs["intra_node_unidir_GBps"][NVLINK[gpu]]
        return cls(nodes, gpus, inside, cards, 1e9 * specs["inter_node"][network] / cards, gpu)

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus

    @property
    def used_inside(self) -> float:
        """Bytes per second of a GPU's NVLink that NCCL's rings use."""
        counted, of = published("nccl_model")["nvlink_GBps"][self.gpu]
        return self.inside * counted / of

    @property
    def used_between(self) -> float:
        """Bytes per second that they send out of a node, by all its cards."""
        counted, of = published("nccl_model")["card_GBps"]
        return self.cards * self.card * counted / of

    def topology(self) -> Topology:
        """The same as a graph, by the rates of the data sheets."""
        if self.nodes == 1:
            return nodes.nvswitch_star(self.inside, self.gpus)
        return nodes.cluster(self.nodes, self.gpus, self.inside, self.card, self.cards)
