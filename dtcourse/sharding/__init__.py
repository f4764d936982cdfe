"""Sharded data parallelism: what data parallelism keeps p times is shared out over the ranks (ZeRO, FSDP).

In the order in which to read them:

    partition.py       who owns which parameter
    exchange.py        parameters and gradients between their owners and everybody
    zero1.py           ZeroRedundancyOptimizer: optimizer states on their owner (P_os); optimizer_states.py goes with it
    zero2.py           ShardedDataParallel: gradients on their owner as well (P_os+g)
    gathered_parameters.py   parameters that are gathered together, and this rank's part of them
    unsent_gradients.py      their gradients, until they are sent
    flat_parameter.py        cut as one run of elements; dtensor_parameters.py: each cut by its rows
    inner_axes.py      what its DTensors say where tensor or expert parallelism had cut the model before
    unit.py            what is gathered, freed and reduced together (reduction.py); changed.py: parameters that change
    schedule.py        when; progress.py: where each unit is in a step
    sharded_module.py  what a module becomes; hooks.py, policies.py, whole_model.py, replaced.py, refusals.py go with it
    forward_methods.py methods besides forward
    fully_shard.py     fully_shard: parameters as well (P_os+g+p), as DTensors, in PyTorch's shape
    fully_sharded_data_parallel.py   FullyShardedDataParallel: the same, flat
    state_dict.py      the sharded model's state, whole; checkpoint.py: in parts, on disk (dtcourse/checkpoint)
"""

from dtcourse.sharding.forward_methods import register_fsdp_forward_method
from dtcourse.sharding.fully_shard import FSDPModule, fully_shard
from dtcourse.sharding.fully_sharded_data_parallel import FullyShardedDataParallel
from dtcourse.sharding.policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from dtcourse.sharding.state_dict import full_gradients, full_state_dict, load_full_state_dict
from dtcourse.sharding.zero1 import ZeroRedundancyOptimizer
from dtcourse.sharding.zero2 import ShardedDataParallel

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "FullyShardedDataParallel",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ShardedDataParallel",
    "ZeroRedundancyOptimizer",
    "full_gradients",
    "full_state_dict",
    "fully_shard",
    "load_full_state_dict",
    "register_fsdp_forward_method",
]
