"""Collective communication, built on send and receive alone. In the order in which to read it:

p2p.py               send and receive: the only place where a message leaves a rank
naive.py             a root that talks to each of the others in turn; all nine collectives
tree.py              the binomial tree: log2 p rounds, for what is small
naive_ring.py        the ring's all-reduce on one page
ring.py              the ring: every link busy all the time, for what is large
ring_steps.py        its steps: what is sent and received together
pairwise.py          all-to-all: in step s with the neighbours at distance s
halving_doubling.py  half of the vector with one partner, a quarter with the next, ...
double_tree.py       two trees at once, each rank a leaf in one of them
two_trees.py         its trees
hierarchical.py      two levels: inside a node, then between nodes
transfer.py          one step round a ring, begun now and waited for later
autograd.py          collectives that gradients go back through
terms.py             what each algorithm's time is made of: latencies, messages, bytes, sums
algorithms.py        all of them in one table: when to use which, its terms, its backend

What these share: reduce_ops.py (what is combined, and how), chunks.py (blocks, chunks, scratch memory), checks.py
(mistakes in a call), subgroup.py (some ranks of a group, over its messages). How steps become torch.distributed's
calls: forms.py, personal_forms.py (where each rank gets something else) and running.py. What was sent: traffic.py
counts, counted.py sums, over each axis of a mesh as well (mesh_axes.py, axis_table.py). What ranks ask each other in
order to decide: decisions.py.

wire/                what carries the messages: channel, tags, workers, guard
flight/              a recorder of the last collectives of each rank, for when they hang (debugging reads it)
backend/             the algorithms behind torch.distributed's own calls: launch(..., backend="ring")

How long an algorithm takes is predicted in simulator/collective_cost.py and measured in profiling/collective_bench.py.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {"EmulatedNetwork": "dtcourse.emulation", "Traffic": "dtcourse.collectives.counted"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
