"""Tensor parallelism: each weight is cut, and every rank computes with its slice on all of the batch (Megatron-LM).

In the order in which to read them:

    mappings.py        between replicated tensors and cut ones: copy, reduce, gather, scatter, and whose loss it is
    shards.py          modules that hold slices of parameters, and the whole model's state (parameters/placement.py)
    linear.py          layers cut by columns and by rows: a region with one all-reduce each way
    overlapped.py      asynchronous tensor parallelism: a region's products beside its messages, rank by rank
    embedding.py       a vocabulary cut by rows, or by columns
    cross_entropy.py   the loss of logits that nobody gathers
    random_state.py    which ranks draw the same random numbers
    styles.py          how attention heads and MLPs are cut, and what does not divide
    layouts.py         a tensor laid out otherwise: whole, cut along a dim, or a part of a sum
    laid_out.py        layers that are cut, whose inputs and outputs their neighbours keep otherwise
    single_layers.py   how one layer is cut, or does its own tokens alone: PyTorch's names
    experts.py         the same for experts of a mixture: each one's matrices are cut as those of an MLP
    prepare.py         inputs and outputs of a module, laid out as its neighbours need them
    parallelize.py     parallelize: all of that for an unchanged model, by a plan
    clipping.py        the norm of gradients that are cut, and clipping by it
    summa.py           a linear layer on a square grid of ranks, activations cut as well
"""

from dtcourse.tensor_parallel.clipping import clip_grad_norm
from dtcourse.tensor_parallel.cross_entropy import cross_entropy
from dtcourse.tensor_parallel.embedding import ColumnParallelEmbedding, VocabParallelEmbedding
from dtcourse.tensor_parallel.experts import ExpertsParallel, TensorParallelExperts
from dtcourse.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from dtcourse.tensor_parallel.overlapped import gather_linear, linear_sum
from dtcourse.tensor_parallel.parallelize import check_plan, parallelize, transformer_plan
from dtcourse.tensor_parallel.prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)
from dtcourse.tensor_parallel.random_state import different_on_each_rank, same_on_all_ranks
from dtcourse.tensor_parallel.shards import (
    full_gradients,
    full_state_dict,
    load_full_state_dict,
)
from dtcourse.tensor_parallel.single_layers import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)
from dtcourse.tensor_parallel.styles import (
    HeadwiseParallel,
    RegionParallel,
    SplitDropoutParallel,
)
from dtcourse.tensor_parallel.summa import SummaLinear

__all__ = [
    "ColumnParallelEmbedding",
    "ColumnParallelLinear",
    "ColwiseParallel",
    "ExpertsParallel",
    "HeadwiseParallel",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RegionParallel",
    "RowParallelLinear",
    "RowwiseParallel",
    "SequenceParallel",
    "SplitDropoutParallel",
    "SummaLinear",
    "TensorParallelExperts",
    "VocabParallelEmbedding",
    "check_plan",
    "clip_grad_norm",
    "cross_entropy",
    "different_on_each_rank",
    "full_gradients",
    "full_state_dict",
    "gather_linear",
    "linear_sum",
    "load_full_state_dict",
    "parallelize",
    "same_on_all_ranks",
    "transformer_plan",
]
