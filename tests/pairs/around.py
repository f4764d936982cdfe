"""What goes around a run, over what cuts its model: which pairs work, which are refused, and which test proves it.
`python -m tests.pairs.around` prints both tables of CONTRIBUTING.
"""

from __future__ import annotations

from tests.pairs.table import SHARDED, ZERO, Pair, table

DDP = "DistributedDataParallel"
CUT = ("tensor", "sequence", "expert")
OVER = (DDP, *ZERO, *SHARDED, *CUT, "pipeline", "compression")
HERE, THERE = "tests.pairs.test_around_a_run", "tests.fault_tolerance"
END = f"{HERE}.test_with_a_guard_copies_in_memory_and_a_checkpoint_it_ends_as_one_process"
WITH_ZERO = f"{HERE}.test_virtual_ranks_and_halving_with_states_on_their_owners_are_one_process"
RESUMED = "test_a_resumed_run_is_the_undisturbed_one_bit_for_bit"
SCALED = "test_a_scaler_keeps_its_overflows_to_itself_and_is_not_told_of_a_loss_left_out"
RECOVERED = "test_from_memory_and_from_the_file_a_run_goes_on_with_the_same_bits"
REPLACED = "test_a_new_worker_takes_a_lost_one_s_place_and_gets_its_shard_from_the_neighbour"
CHANGED = "test_workers_die_join_and_leave_and_nothing_of_the_training_changes"
PARTS = "tests.pairs.test_around_parts"
GUARDED = "test_a_batch_left_out_leaves_nothing_in_a_compression"
LOST_STAGE = "test_a_lost_rank_of_a_pipeline_gets_its_stage_from_its_neighbour"
LOST_RESIDUALS = "test_a_lost_rank_gets_what_its_compression_had_left_out"
ONE_HAS_NOT_ALL = "no rank has all; no test in parts"


def _refused(tool: str, inner: str, words: str) -> Pair:
    return Pair(tool, inner, f"{tool} over {inner}", False, words)


AROUND = (
    *(
        Pair(tool, inner, END)
        for tool in ("guard", "peer copies", "training state")
        for inner in (*ZERO, *SHARDED, *CUT)
    ),
    Pair("guard", DDP, f"{THERE}.test_guard_together.{SCALED}"),
    Pair("guard", "pipeline", f"{THERE}.test_guard_together.test_what_one_rank_sees_all_leave_out"),
    Pair("peer copies", DDP, f"{THERE}.test_peer_copies.{RECOVERED}"),
    Pair("guard", "compression", f"{PARTS}.{GUARDED}", words="its state in touched"),
    Pair("peer copies", "pipeline", f"{PARTS}.{LOST_STAGE}"),
    Pair("peer copies", "compression", f"{PARTS}.{LOST_RESIDUALS}"),
    Pair("training state", DDP, f"{THERE}.test_exact_resume.{RESUMED}"),
    Pair("training state", "pipeline", f"{THERE}.test_exact_layouts.{RESUMED}"),
    Pair(
        "training state",
        "compression",
        f"{THERE}.test_exact_resume.{RESUMED}",
        words="on as many ranks",
    ),
    Pair("elastic", DDP, f"{THERE}.test_elastic.{CHANGED}"),
    Pair(
        "elastic",
        "fully_shard",
        f"{THERE}.test_elastic.{REPLACED}",
        words="in parts, on as many workers",
    ),
    *(_refused("elastic", inner, ONE_HAS_NOT_ALL) for inner in (*ZERO, SHARDED[1], *CUT)),
    Pair("VirtualRanks", "ZeRO-1", WITH_ZERO),
    *(
        _refused("VirtualRanks", inner, "it averages already")
        for inner in (DDP, ZERO[1], "compression")
    ),
    _refused("VirtualRanks", "pipeline", "no rank has all"),
    _refused("elastic", "pipeline", ONE_HAS_NOT_ALL),
    _refused("halving", "pipeline", "its forward waits for others"),
    _refused("halving", "compression", "its hook would not be called"),
    *(_refused("VirtualRanks", inner, "its hooks reduce already") for inner in SHARDED),
    *(_refused("VirtualRanks", inner, "ranks hold different slices") for inner in CUT[:2]),
    _refused("VirtualRanks", "expert", "one mean is wrong for both"),
    Pair("halving", DDP, "tests.memory.test_oom.test_all_ranks_agree_and_average"),
    *(Pair("halving", inner, WITH_ZERO) for inner in ZERO),
    *(_refused("halving", inner, "its forward waits for others") for inner in (*SHARDED, *CUT)),
)


def around() -> str:
    """In Markdown."""
    return table(AROUND, OVER, "around a run \\ over")


if __name__ == "__main__":
    print(table(), around(), sep="\n\n")
