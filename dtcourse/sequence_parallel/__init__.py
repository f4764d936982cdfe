"""Sequence parallelism: one sequence, too long for one rank, cut over all of them along its tokens.

In the order in which to read them:

    order.py            which tokens a rank holds: neighbours, or zig-zag
    pieces.py           which of a rank's queries look at which of another's keys
    ring_attention.py   context parallelism: keys and values go round a ring
    ulysses.py          an all-to-all between tokens and heads
    embedding.py        where activations become cut by tokens
    megatron.py         what tensor parallelism leaves whole, each rank for its tokens alone
"""

from dtcourse.sequence_parallel.megatron import parallelize_sequence
from dtcourse.sequence_parallel.order import positions, shard, unshard
from dtcourse.sequence_parallel.ring_attention import RingAttentionCore, ring_attention
from dtcourse.sequence_parallel.ulysses import UlyssesCore, check_heads, ulysses_attention

__all__ = [
    "RingAttentionCore",
    "UlyssesCore",
    "check_heads",
    "parallelize_sequence",
    "positions",
    "ring_attention",
    "shard",
    "ulysses_attention",
    "unshard",
]
