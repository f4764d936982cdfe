"""Which pairs of techniques work, which are refused, and which test proves it. `python -m tests.pairs.table` prints the
table that CONTRIBUTING holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARDED = ("fully_shard", "FullyShardedDataParallel")
ZERO = ("ZeRO-1", "ZeRO-2")
INNER = ("tensor", "sequence", "expert", "full sharding", "pipeline", "split backward")


@dataclass(frozen=True)
class Pair:
    """outer is applied to a model that inner has cut.

    proof: works: the test's file and name;  refused: the key in tests/parameters/test_slices.py's REFUSED
           or test_pipedream.py's;  words: what is said besides
    """

    outer: str
    inner: str
    proof: str
    works: bool = True
    words: str = ""


WEIGHTED, SPLIT = "tests.pairs.test_weighted", "tests.pairs.test_after_split"
EQUAL, SLICES = "tests.pairs.test_equal", "tests.parameters.test_slices"
PIPED, BOTH = "tests.pairs.test_pipelines", "tests.pairs.test_tensor_experts"
PAIRS = [
    *(
        Pair(outer, inner, f"{EQUAL}.test_full_sharding_over_{inner}_parallelism", words=words)
        for outer in SHARDED
        for inner, words in (
            (
                "tensor",
                "but for heads that two ranks hold" if outer == "fully_shard" else "",
            ),
            ("sequence", ""),
            ("expert", "with average_gradients"),
        )
    ),
    *(Pair(outer, "pipeline", f"{PIPED}.test_full_sharding_over_a_pipeline") for outer in SHARDED),
    *(
        Pair(outer, "split backward", f"split backward under {outer}", False, "weights are freed between")
        for outer in SHARDED
    ),
    Pair("ZeRO-1", "pipeline", f"{PIPED}.test_zero1_over_a_pipeline", words="with data_parallel"),
    *(
        Pair("PipeDream", inner, "tests.pairs.test_pipedream.test_it_is_the_same_over_tensor_and_sequence_parallelism")
        for inner in ("tensor", "sequence")
    ),
    *(
        Pair("PipeDream", inner, f"PipeDream over {inner}", False, "an update follows each backward at once")
        for inner in ("expert", "full sharding")
    ),
    Pair("PipeDream", "split backward", "PipeDream over split backward", False, "its updates do not wait for halves"),
    Pair("PipeDream", "pipeline", "PipeDream over a pipeline", False, "its stages are one list"),
    Pair("ZeRO-2", "pipeline", f"{PIPED}.test_zero2_over_a_pipeline"),
    *(
        Pair(outer, "split backward", f"split backward under {outer}", False, "each part would be reduced by itself")
        for outer in ("ZeRO-2", "DistributedDataParallel", "WeightedDataParallel")
    ),
    Pair("pipeline", "tensor", f"{PIPED}.test_a_pipeline_over_tensor_parallelism"),
    Pair("pipeline", "pipeline", "a pipeline of a pipeline", False, "its stages are one list"),
    Pair("pipeline", "sequence", f"{PIPED}.test_a_pipeline_over_sequence_parallelism"),
    Pair("pipeline", "expert", f"{PIPED}.test_a_pipeline_over_experts", words="with average_gradients"),
    Pair(
        "DistributedDataParallel",
        "pipeline",
        f"{PIPED}.test_data_parallelism_over_a_pipeline",
        words="as Pipeline(data_parallel=...)",
    ),
    Pair(
        "DistributedDataParallel",
        "tensor",
        f"{SLICES}.test_over_the_data_axis_of_tensor_parallelism_it_is_one_process",
    ),
    Pair(
        "DistributedDataParallel",
        "sequence",
        f"{SLICES}.test_over_the_data_axis_of_tensor_parallelism_it_is_one_process",
    ),
    Pair(
        "DistributedDataParallel",
        "expert",
        "DDP over experts, data axis",
        False,
        "average_gradients does it",
    ),
    Pair("DistributedDataParallel", "full sharding", "DDP over full sharding", False, "its hooks do it"),
    *(
        Pair("WeightedDataParallel", inner, f"{WEIGHTED}.test_over_the_data_axis_it_is_one_process_or_refused")
        for inner in ("tensor", "sequence")
    ),
    *(
        Pair("WeightedDataParallel", inner, f"WeightedDataParallel over {what}", False, words)
        for inner, what, words in (
            ("expert", "experts", "average_gradients does it, unweighted"),
            ("full sharding", "full sharding", "its hooks do it, unweighted"),
            ("pipeline", "a pipeline", "MovingStages gives ranks layers instead"),
        )
    ),
    Pair("ZeRO-1", "tensor", f"{EQUAL}.test_zero_over_tensor_parallelism"),
    Pair("ZeRO-1", "sequence", f"{EQUAL}.test_zero_over_sequence_parallelism"),
    Pair(
        "ZeRO-1",
        "expert",
        f"{EQUAL}.test_zero_over_expert_parallelism",
        words="with average_gradients",
    ),
    Pair("ZeRO-1", "full sharding", "ZeRO-1 over full sharding", False, "states are sharded already"),
    Pair("ZeRO-2", "tensor", f"{EQUAL}.test_zero_over_tensor_parallelism"),
    Pair("ZeRO-2", "sequence", f"{EQUAL}.test_zero_over_sequence_parallelism"),
    Pair("ZeRO-2", "expert", "ZeRO-2 over experts", False, "one mean is wrong for both"),
    Pair("expert", "tensor", f"{BOTH}.test_experts_and_tensor_parallelism_are_one_process"),
    Pair("expert", "full sharding", "experts over fully_shard", False, "experts first"),
    Pair("tensor", "expert", f"{BOTH}.test_experts_and_tensor_parallelism_are_one_process"),
    Pair("tensor", "full sharding", "tensor over fully_shard", False, "tensor first"),
    Pair("fully_shard", "full sharding", "fully_shard over fully_shard", False, "a module once"),
    Pair("FullyShardedDataParallel", "full sharding", "flat over fully_shard", False, "a module once"),
    Pair("ZeRO-2", "full sharding", "ZeRO-2 over full sharding", False, "states are sharded already"),
    Pair("pipeline", "full sharding", "a pipeline over fully_shard", False, "split first"),
    Pair("ZeRO-1", "split backward", f"{SPLIT}.test_a_backward_in_two_halves", words="with data_parallel"),
    Pair("pipeline", "split backward", f"{SPLIT}.test_a_backward_in_two_halves", words="as its schedule"),
    Pair("tensor", "split backward", f"{SPLIT}.test_a_backward_in_two_halves"),
    Pair("expert", "split backward", f"{SPLIT}.test_a_backward_in_two_halves"),
    Pair("tensor", "pipeline", f"{SPLIT}.test_stages_are_cut_after_the_split"),
    Pair("expert", "pipeline", f"{SPLIT}.test_stages_are_cut_after_the_split", words="stage by stage"),
    Pair("tensor", "sequence", "tensor over sequence", False, "tensor first"),
    Pair("tensor", "tensor", "tensor over tensor", False, "one plan"),
    Pair("expert", "sequence", "sequence of a mixture", False, "gates would choose for a part"),
    Pair("expert", "expert", "experts over experts", False, "given out already"),
]  # fmt: skip


def working(inner: str) -> list[str]:
    """The outer ones of full sharding that work over it."""
    return [p.outer for p in PAIRS if p.inner == inner and p.works and p.outer in SHARDED]


def zeros(inner: str) -> list[str]:
    """Those of ZeRO that work over it; where gradients may go to owners, also by reduce_gradients."""
    found = [p.outer for p in PAIRS if p.inner == inner and p.works and p.outer in ZERO]
    return found + (["reduce_gradients"] if "ZeRO-2" in found else [])


def table(
    pairs: Sequence[Pair] = tuple(PAIRS),
    columns: Sequence[str] = INNER,
    corner: str = "outer \\ inner",
) -> str:
    """In Markdown."""
    cells = {(p.outer, p.inner): p for p in pairs}
    lines = [f"| {corner} | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for outer in dict.fromkeys(p.outer for p in pairs):
        row = [_words(cells.get((outer, inner))) for inner in columns]
        lines.append(f"| {outer} | {' | '.join(row)} |")
    return "\n".join(lines)


def _words(pair: Pair | None) -> str:
    if pair is None:
        return "no test"
    return ("works" if pair.works else "refused") + (f": {pair.words}" if pair.words else "")


if __name__ == "__main__":
    print(table())
