"""Published runs as the planner's questions, each with what was measured.

    mpt         139 runs of MPT on 8 to 128 A100, fully sharded (mpt_a100.json)
    vtrain      240 runs of Megatron-DeepSpeed on one node of A100: tensor, data, pipeline (vtrain_single.json)
    torchtitan  Llama 3.1 on 8 to 512 H100, with memory (torchtitan.json)

What the sources do not say is named here, each with what stands in for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.model import Model
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import Range
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.step import predict
from dtcourse.simulator.hardware import published


@dataclass(frozen=True)
class Run:
    """source, name, size (the model's), gpus; what predict takes; seconds of a step, and GiB where measured."""

    source: str
    name: str
    size: str
    gpus: int
    model: Model
    hardware: Hardware
    layout: Layout
    batch: Batch
    precision: Precision
    software: Software
    seconds: float
    gib: float | None = None

    def predict(self, **hardware: Any) -> Prediction:
        """hardware: fields to change."""
        card = replace(self.hardware, **hardware)
        return predict(self.model, card, self.layout, self.batch, self.precision, self.software)


# The host's seconds per kernel under Megatron-DeepSpeed with its hooks. FITTED to vtrain's runs, where small models
# are bound by nothing else (benchmarks/planner.py leaves out a size, and a number of GPUs, and fits it again). Hosts
# of one kind differ by as much as the range.
MEGATRON_LAUNCH = Range(34e-6, 43e-6, 52e-6)

# FITTED to torchtitan's runs: the rate of products and attention on an H100 at 500 of its 700 W. It is more than the
# clock: with power in proportion to the clock's cube that would be 0.89, to the clock 0.71, and `sustained` counts
# besides. Copies that full sharding makes, and casts to 8 bits that no figure is known of, may be in it.
POWER_LIMITED = 0.74
# Of GPT-2, and of vTrain's larger models.
VOCABULARY = Range(50257, 51200, 51200)


def mpt() -> list[Run]:
    """MPT: no biases, learned positions, tied, Triton's first flash attention (its repository's YAML files; torch
    1.13 or later). Not said: the step's wall time (here from tokens a second), the optimizer's kernels (not fused),
    and which PyTorch: rows with amp_bf16 are the later ones, and those that recompute are as much faster than the
    earlier as checkpoints that stop early make them, so these are assumed (a deduction from the runs themselves).
    """
    found, data = [], published("mpt_a100")
    for row in data["rows"]:
        size = data["setup"]["models"][row["model"]]
        model = Model(**size, vocabulary=data["setup"]["vocab"], sequence=row["seq"], biases=False)
        pure = row["fsdp_mp_mode"] == "PURE"
        card = "A100 SXM 40" if row["gpu"].endswith("40gb") else "A100 SXM"
        gpus = row["gpus"]
        found.append(
            Run(
                "mpt",
                f"{row['model']:>4} {row['gpu'][5:]} x {gpus}, {row['seq']} tokens, {row['mbs']} x {row['grad_accum']}",
                row["model"],
                gpus,
                model,
                # 1,600 Gb/s a node
                Hardware.of(card, card=25e9),
                Layout(dp_shard=gpus, stage=3, copied=False),
                Batch(row["gbs"], row["mbs"]),
                Precision("bf16 autocast", reduce=2 if pure else 4),
                Software(
                    "flash1",
                    recompute="full" if row["act_ckpt"] else "none",
                    early_stop=not pure,
                    optimizer_fused=False,
                ),
                row["iter_s"],
            )
        )
    return found


def vtrain() -> list[Run]:
    """GPT under Megatron-DeepSpeed: unfused attention with dropout, Megatron's fused kernels.

    Its set-up says that activations are recomputed, and that gradients have no buckets (one message). Not said: the
    vocabulary (a range up to 51,200, that of its larger models).
    """
    found = []
    for row in published("vtrain_single")["single"]:
        model = Model(
            layers=row["layers"], hidden=row["hidden"], heads=row["heads"], vocabulary=VOCABULARY,
            sequence=row["seq"], dropout=True,
        )  # fmt: skip
        tp, dp, pp = row["tp"], row["dp"], row["pp"]
        found.append(
            Run(
                "vtrain",
                f"{row['hidden']} x {row['layers']}, tp {tp} pp {pp} dp {dp}, {row['mbs']} of {row['gbs']}",
                f"{row['hidden']} x {row['layers']}",
                row["gpus"],
                model,
                Hardware.of("A100 SXM", launch=MEGATRON_LAUNCH),
                Layout(
                    dp_replicate=dp, tp=tp, pp=pp, overlap_data=False, bucket=math.inf, copied=False
                ),
                Batch(row["gbs"], row["mbs"]),
                Precision("fp16 + master", accumulate=2),
                Software("unfused", fused=True, loss="vocab_parallel", recompute="full"),
                row["iter_ms"] / 1e3,
            )
        )
    return found


_LLAMA = {
    "8B": (32, 4096, 32, 14336),
    "70B": (80, 8192, 64, 28672),
    "405B": (126, 16384, 128, 53248),
}  # Llama 3's paper, 2407.21783, table 3


def llama(size: str, sequence: int) -> Model:
    """Llama 3.1."""
    layers, hidden, heads, ffn = _LLAMA[size]
    return Model(
        layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, gated=True, tied=False, biases=False,
        norm="rms", positions="rotary", vocabulary=128256, sequence=sequence,
    )  # fmt: skip


def torchtitan() -> list[Run]:
    """Llama 3.1 on H100 with 2.4 TB/s and 500 W instead of 700.

    Not said: the clock at 500 W (a range), the sequence of most rows (8,192, torchtitan's default), a pipeline's
    micro-batches (as many as stages' ranks, torchtitan's default). The local batch is a data-parallel rank's.
    """
    data = published("torchtitan")
    card = Hardware.of(
        "H100 SXM", hbm=2.4e12, memory=96e9, card=50e9, clock=Range(0.6, POWER_LIMITED, 1.0)
    )
    found: list[Run] = []

    def add(
        size: str, gpus: int, layout: Layout, local: int, tps: float, name: str, *, gib: float | None = None,
        sequence: int = 8192, eight: bool = False, compiled: bool = True, recompute: str = "full",
        micro: int | None = None,
    ) -> None:  # fmt: skip
        rows = local * layout.data
        found.append(
            Run(
                "torchtitan", f"{size} x {gpus} {name}", size, gpus, llama(size, sequence), card, layout,
                Batch(rows, micro or local),
                Precision("bf16 autocast", reduce=4, eight_bit=eight, gather_8bit=eight),
                Software(
                    "flash2", compiled=compiled, recompute=recompute, early_stop=True,
                    loss="loss_parallel" if layout.tp > 1 else "eager",
                ),
                rows * sequence / (tps * gpus), gib,
            )
        )  # fmt: skip

    for table, gpus in (("t1_8b_8gpu_fsdp_lbs2_sac", 8), ("t3_8b_128gpu_fsdp_lbs2_sac", 128)):
        for name, (tps, gib) in data[table].items():
            layout = Layout(dp_shard=gpus, stage=3)
            add("8B", gpus, layout, 2, tps, name, gib=gib, eight="fp8" in name, compiled="compile" in name,
                recompute="ops")  # fmt: skip
    for shard, cp, sequence, tps, gib in data["t2_8b_8gpu_cp_fp8_fullac_lbs1"]:
        layout = Layout(dp_shard=shard, cp=cp, stage=3, context="all_gather")
        add("8B", 8, layout, 1, tps, f"cp {cp}", gib=gib, sequence=sequence, eight=True)
    for name, (tps, gib) in data["t4_70b_256gpu_fsdp32_tp8_lbs16_fullac_fp8"].items():
        overlap = 0.5 if name == "asyncTP" else 0.0
        layout = Layout(dp_shard=32, tp=8, stage=3, sequence_parallel=True, overlap_tensor=overlap)
        add("70B", 256, layout, 16, tps, f"fp8 {name}", gib=gib, eight=True)
    three = Layout(
        dp_shard=8,
        tp=8,
        pp=8,
        stage=3,
        sequence_parallel=True,
        overlap_tensor=0.5,
        reshard_after_forward=False,
    )
    for name, (tps, gib) in data["t5_405b_512gpu_fsdp8_tp8_pp8_lbs32_fullac_fp8_asynctp"].items():
        chunked = replace(three, schedule="interleaved", chunks=2)
        layout = chunked if name == "Interleaved" else three
        add("405B", 512, layout, 32, tps, name, gib=gib, eight=True, micro=4)
    for shard, cp, sequence, tps, gib in data["t6_405b_512gpu_tp8_pp8_lbs8_cp"]:
        layout = replace(three, dp_shard=shard, cp=cp, context="all_gather")
        add(
            "405B", 512, layout, 8, tps, f"cp {cp}", gib=gib, sequence=sequence, eight=True, micro=1
        )
    for row, size in (("l70b_256", "70B"), ("l8b_64", "8B")):
        each = data["asynctp_2025_06"][row]
        gpus = each["fsdp"] * each["tp"]
        for kind in ("bf16", "fp8_tensorwise", "fp8_rowwise"):
            for name, tps, overlap in zip(
                ("vanilla", "asyncTP"), each[kind], (0.0, 0.5), strict=True
            ):
                layout = Layout(
                    dp_shard=each["fsdp"],
                    tp=8,
                    stage=3,
                    sequence_parallel=True,
                    overlap_tensor=overlap,
                )
                add(size, gpus, layout, each["lbs"], tps, f"{kind} {name}", eight=kind != "bf16")
    return found


# Measurements in the files of which too little is said.
NOT_TRIED = ("torchtitan h200_8b_fp8, 2 rows: neither the layout nor the batch is said",)
SOURCES = {"mpt": mpt, "vtrain": vtrain, "torchtitan": torchtitan}
