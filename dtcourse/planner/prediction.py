"""What a prediction says, and what it advises."""

from __future__ import annotations

from dataclasses import dataclass, field

# What each part of a step is, and what to change first where it is the largest that is not plain work.
ADVICE = {
    "products": "matrix products: it computes. Fewer operations (less recomputation), lower precision, or more devices",
    "attention": "attention: a better fused kernel, or context parallelism",
    "memory": "element-wise kernels and their bytes: fuse or compile them, or use flash attention",
    "host": "the host, which launches kernels more slowly than they run: larger micro-batches, fewer tp ranks, "
    "compile or capture graphs",
    "tensor": "tensor parallelism's messages: fewer tp ranks, all of them in one node, or overlap them",
    "context": "context parallelism's messages: fewer cp ranks, or inside a node",
    "experts": "all-to-all between experts: fewer ep ranks, or all of them in a node",
    "sharding": "gathers and scatters of sharded parameters: larger micro-batches, or shards inside a node only "
    "(dp_replicate), or no resharding after the forward pass",
    "averaging": "averaging gradients: overlap it, more micro-batches between, or fewer bytes",
    "contention": "messages that take multiprocessors from what is computed: fewer of them",
    "measured": "what was measured of its kernels: it computes. Measure another shape, or use more devices",
    "offload": "activations on their way to the host and back: offload fewer layers, or recompute them",
    "bubble": "the pipeline's bubble: more micro-batches, interleaved stages, or fewer stages",
    "optimizer": "the optimizer: a fused one, or sharded over data-parallel ranks",
    "transfer": "messages between stages: send while the next one is computed (overlap_transfer), fewer stages, or all "
    "of them in a node",
}


@dataclass(frozen=True)
class Prediction:
    """seconds:  of a step; interval: (fastest, slowest) over what is only known as a range
    parts:       seconds of the rank with most to do, by kind; they add up to `seconds`
    tokens_per_second: of all devices together
    mfu, hfu:    parts of the peak, by `convention`; hfu counts what is computed twice as well
    memory:      of each stage's rank, bytes by kind. The reserve is "fragments" (held by the allocator, used by no
                 tensor) and "context" (CUDA's, of libraries and of NCCL)
    bytes_interval: (least, most) of the largest stage, over what is only known as a range
    host_bytes:  in the host's memory, of one device, where activations are offloaded
    fits, surely_fits: whether the largest stage with its reserve is below the device's memory: at the likely bytes, and
                 over all that is only known as a range
    why:         what limits it, and what to change first
    flops:       operations that one device performs in a step, counted kernel by kernel
    """

    seconds: float
    interval: tuple[float, float]
    parts: dict[str, float]
    tokens_per_second: float
    mfu: float
    hfu: float
    memory: list[dict[str, float]]
    bytes_interval: tuple[float, float]
    host_bytes: float
    fits: bool
    surely_fits: bool
    why: str
    flops: float
    convention: str = field(repr=False)

    @property
    def peak_bytes(self) -> float:
        """Of the stage that needs most, its reserve included: what nvidia-smi shows."""
        return max(sum(stage.values()) for stage in self.memory)

    @property
    def reserved_bytes(self) -> float:
        """The same as PyTorch's allocator counts it (max_memory_reserved): without the context."""
        return max(sum(stage.values()) - stage["context"] for stage in self.memory)

    def __str__(self) -> str:
        low, high = self.interval
        least, most = (each / 2**30 for each in self.bytes_interval)
        lines = [
            f"{self.seconds:.4g} s a step ({low:.4g} to {high:.4g}), {self.tokens_per_second:,.0f} tokens/s, "
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}, {self.peak_bytes / 2**30:.1f} GiB ({least:.1f} to {most:.1f})"
            + ("" if self.surely_fits else " (may not fit)" if self.fits else " (does not fit)"),
            *(
                f"  {name:<12}{seconds:10.4g} s {seconds / self.seconds:6.1%}"
                for name, seconds in sorted(self.parts.items(), key=lambda item: -item[1])
            ),
            self.why,
        ]
        return "\n".join(lines)


def convention(peak: float, dtype: str, causal: str) -> str:
    """Of MFU and HFU, in words."""
    return (
        f"MFU: 6 N + 12 L h s operations per token (N: parameters that a token goes through; attention counted "
        f"{causal}) of {peak / 1e12:g} TFLOP/s, the dense {dtype} peak. HFU: and forward passes of blocks that are run "
        "twice"
    )


def why(parts: dict[str, float], fits: bool, largest: dict[str, float]) -> str:
    """The limit in a sentence."""
    if not fits:
        kind = max(largest, key=largest.__getitem__)
        return (
            f"It does not fit: {kind} take most of {sum(largest.values()) / 2**30:.1f} GiB. "
            "Shard more (a higher ZeRO stage, tp, pp), recompute, or smaller micro-batches"
        )
    total = sum(parts.values())
    lost = {name: each for name, each in parts.items() if name not in ("products", "attention")}
    worst = max(lost, key=lost.__getitem__)
    # What is no product and takes less than a tenth is not worth a change of layout.
    name = worst if lost[worst] > 0.1 * total else max(parts, key=parts.__getitem__)
    return f"{parts[name] / total:.0%} of the step is {ADVICE[name]}."
