"""A Transformer as the planner sees it: its sizes, and its parameters counted from them.

    Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocabulary=128256, sequence=8192)

Nothing is built, and no package of models is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtcourse.planner.ranges import check_ranges, ends


@dataclass(frozen=True)
class Model:
    """Sizes are numbers, no units.

    layers, hidden, heads: blocks, width, attention's heads
    kv_heads:     heads of keys and values; None: as many as heads
    head_dim:     of one head; None: hidden / heads
    ffn:          width of the MLP's hidden layer; None: 4 hidden
    gated:        three matrices in the MLP and not two (SwiGLU)
    tied:         the output layer is the embedding's table
    biases:       linear layers and norms have them
    norm:         "layer" (one kernel), or "rms" (Llama's: several, where nothing fuses them)
    positions:    "learned" (a table of `sequence` rows), "rotary" or "none"
    vocabulary, sequence: tokens known, tokens of a sample
    dropout:      there are dropout layers, each with a mask
    causal:       a token sees those before it
    causal_flops: "whole": the convention for MFU counts attention as if every token saw all; "half": as a causal kernel
                  computes it
    experts:      MLPs of a layer with a gate; 0: one MLP for all tokens
    top_k, shared: experts that a token goes through, and those beside them that all tokens do
    expert_ffn:   width of an expert; None: ffn
    moe_every:    every so many layers has experts, the others one MLP
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool = False
    tied: bool = True
    biases: bool = True
    norm: str = "layer"
    positions: str = "learned"
    vocabulary: Any = 50257
    sequence: Any = 2048
    dropout: bool = False
    causal: bool = True
    causal_flops: str = "whole"
    experts: int = 0
    top_k: int = 2
    shared: int = 0
    expert_ffn: int | None = None
    moe_every: int = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence", "moe_every"):
            for value in ends(getattr(self, name)):
                if value < 1:
                    raise ValueError(f"{name} is at least 1; got {value}")
        for name in ("kv_heads", "head_dim", "ffn", "expert_ffn"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, or None; got {value}")
        for name in ("experts", "shared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is 0 or more; got {getattr(self, name)}")
        if self.shared and not self.experts:
            raise ValueError(f"shared({self.shared}) experts are beside others; got experts=0")
        if self.norm not in ("layer", "rms"):
            raise ValueError(f"norm is 'layer' or 'rms'; got {self.norm!r}")
        if self.experts and self.moe_every > self.layers:
            raise ValueError(
                f"moe_every({self.moe_every}) leaves no layer of {self.layers} with experts"
            )
        if self.causal_flops not in ("whole", "half"):
            raise ValueError(f"causal_flops is 'whole' or 'half'; got {self.causal_flops!r}")
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden({self.hidden}) is no multiple of heads({self.heads}): say head_dim"
            )
        if self.heads % self.grouped:
            raise ValueError(
                f"heads({self.heads}) is no multiple of kv_heads({self.kv_heads}): each serves as many queries"
            )
        if self.positions not in ("learned", "rotary", "none"):
            raise ValueError(f"positions is 'learned', 'rotary' or 'none'; got {self.positions!r}")
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k is between 1 and experts({self.experts}); got {self.top_k}")

    @property
    def grouped(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def wide(self) -> int:
        """Width of the MLP's hidden layer."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert(self) -> int:
        """Width of an expert's."""
        return self.wide if self.expert_ffn is None else self.expert_ffn

    @property
    def expert_layers(self) -> int:
        """How many layers have experts."""
        return self.layers // self.moe_every if self.experts else 0

    @property
    def queries(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Width of all heads of keys."""
        return self.grouped * self.head

    @property
    def attention_parameters(self) -> int:
        """Of one layer, with its two norms."""
        matrices = self.hidden * (2 * self.queries + 2 * self.keys)
        biases = (self.queries + 2 * self.keys + self.hidden) * self.biases
        return matrices + biases + 2 * self.hidden * (1 + self.biases)

    def mlp_parameters(self, width: int) -> int:
        """Of one MLP with a hidden layer of this width."""
        widening = 2 if self.gated else 1
        return (widening + 1) * self.hidden * width + (self.hidden + widening * width) * self.biases

    def expert_parameters(self, chosen: int) -> int:
        """Of a layer's gate, its shared experts, and `chosen` of the others."""
        return self.hidden * self.experts + (chosen + self.shared) * self.mlp_parameters(
            self.expert
        )

    def layer_parameters(self, chosen: int | None = None) -> float:
        """Of a layer, the mean where only some have experts. chosen: count that many experts; None: all."""
        share = self.expert_layers / self.layers
        mlp = (1 - share) * self.mlp_parameters(self.wide)
        if self.experts:
            mlp += share * self.expert_parameters(self.experts if chosen is None else chosen)
        return self.attention_parameters + mlp

    @property
    def embedding_parameters(self) -> int:
        """The table of tokens, and that of positions."""
        rows = self.vocabulary + (self.sequence if self.positions == "learned" else 0)
        return rows * self.hidden

    @property
    def head_parameters(self) -> int:
        """The last norm, and the output layer where it has a table of its own."""
        return self.hidden * (1 + self.biases) + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All of them; a tied one once."""
        layers = round(self.layers * self.layer_parameters())
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token goes through: all but the experts that it was not sent to."""
        if not self.experts:
            return self.parameters
        layers = round(self.layers * self.layer_parameters(self.top_k))
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def attention_flops(self) -> float:
        """Of all layers' scores and their product with the values, forward, per token, by `causal_flops`."""
        whole = 4.0 * self.layers * self.queries * self.sequence
        return whole / 2 if self.causal and self.causal_flops == "half" else whole

    def flops_per_token(self, recomputed: float = 0.0) -> float:
        """6 N + 12 L h s, the field's convention (PaLM 2204.02311, appendix B); half of the second, by causal_flops.

        recomputed: the part of the forward pass that is run twice; 1 for full recomputation. N are active parameters.
        """
        return (2 * self.active_parameters + self.attention_flops) * (3 + recomputed)

    def recomputed_flops(self, products: float, attention: float) -> float:
        """Per token, of these parts of the blocks' products and of attention run once more (all active parameters of
        blocks twice, and attention as above): what HFU counts beside MFU's.
        """
        blocks = self.layers * self.layer_parameters(self.top_k if self.experts else None)
        return products * 2 * blocks + attention * self.attention_flops
