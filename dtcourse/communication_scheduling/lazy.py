"""Lazy aggregation: a rank whose gradient has hardly changed sends nothing, and the others go on with its last one.

Each rank remembers the gradient that it sent last. It sends again when the new one is further from it than the model
has lately moved:

    |g - g_sent|^2  >  threshold * sum over the last D steps of |theta_k - theta_(k-1)|^2 / lr^2

On the right is about how fast gradients of a smooth loss may change; so ranks whose loss is flat, or whose data are
like the others', are rarely heard. How often one communicates follows from progress, and no period has to be chosen.

Here there is no server. All ranks keep the same mean; those that send say so in one small all-reduce, and then what has
changed travels: one sender broadcasts its difference, several all-reduce theirs. With threshold 0 everybody whose
gradient has changed sends, and the mean is DistributedDataParallel's.

The rule compares gradients of the same data at two moments. With a new mini-batch each step, noise alone crosses it,
and everybody always sends (Chen, Sun and Yin's LASG is for that). It is for whole batches, and for ranks with data of
their own.

Bytes of all p ranks, of n bytes of gradient: 8 p (p - 1) to say who sends; then 0, (p - 1) n for one sender, 2 (p - 1)
n for more.
Memory: three times the gradient, besides: what was sent, the mean, the parameters of the last step.
Source: Chen, Giannakis, Sun and Yin 2018, "LAG: Lazily aggregated gradient" (1805.09965), its worker's rule (15a).
"""

# Annotations are objects here, not strings: PyTorch looks at the hook's.

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from dtcourse.parameters.agreement import on_any_rank
from dtcourse.parameters.replicas import Group


@dataclass
class _Memory:
    """Of one bucket: what this rank has sent, the mean of what all have, where the parameters were,
    how far they moved.
    """

    sent: torch.Tensor
    mean: torch.Tensor
    before: torch.Tensor
    moved: deque[float]


@dataclass
class LazyAggregation:
    """What the hook remembers: model.register_comm_hook(LazyAggregation(lr), lazy_hook), plain SGD with that lr.

    learning_rate: the optimizer's, or a function that returns it
    threshold:     the paper's xi, the same for each of the steps; 0: as without it
    history:       the paper's D, in steps

    num_senders: how many ranks have sent, for each bucket in turn
    Raises ValueError for a learning rate, threshold or history that is none; and where the model has changed.
    """

    learning_rate: float | Callable[[], float]
    threshold: float = 0.1
    history: int = 10
    group: Group = None
    num_senders: list[int] = field(default_factory=list)
    _memories: dict[tuple[int, ...], _Memory] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.learning_rate) and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is above 0; got {self.learning_rate!r}")
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"threshold is 0 or more; got {self.threshold!r}")
        if not (isinstance(self.history, int) and self.history >= 1):
            raise ValueError(f"history is a number of steps, 1 or more; got {self.history!r}")

    def average(
        self, key: tuple[int, ...], gradient: torch.Tensor, parameters: torch.Tensor
    ) -> torch.Tensor:
        """The mean of what all ranks have sent last, this step included. All ranks call it.

        key: which parameters they are, as numbers;  gradient, parameters: flat, (elements,),
             this rank's and the model's
        """
        memory = self._memories.get(key)
        if memory is not None and memory.sent.shape != gradient.shape:
            raise ValueError(
                f"the bucket had {len(memory.sent)} elements in the last step and has {len(gradient)}: what was "
                "sent before is the gradient of another model. Take a new LazyAggregation with it"
            )
        rank, p = dist.get_rank(self.group), dist.get_world_size(self.group)
        if memory is None:
            zero = torch.zeros_like(gradient)
            limit = -1.0  # nobody has heard of anybody
            memory = _Memory(zero, zero.clone(), parameters.clone(), deque(maxlen=self.history))
            for other in [k for k in self._memories if set(k) & set(key)]:
                del self._memories[other]  # of buckets that have been built again
            self._memories[key] = memory
        else:
            memory.moved.append(float((parameters - memory.before).square().sum()))
            memory.before.copy_(parameters)
            lr = self.learning_rate() if callable(self.learning_rate) else self.learning_rate
            limit = self.threshold * sum(memory.moved) / lr**2
        change = gradient - memory.sent
        sends = float(change.square().sum()) > limit
        said = on_any_rank([sends and r == rank for r in range(p)], self.group, gradient.device)
        self._add(memory, gradient, change, said, rank)
        self.num_senders.append(sum(said))
        return memory.mean

    def _add(
        self,
        memory: _Memory,
        gradient: torch.Tensor,
        change: torch.Tensor,
        said: list[bool],
        rank: int,
    ) -> None:
        """What the senders have to say goes into everybody's mean."""
        p, senders = len(said), [r for r, sends in enumerate(said) if sends]
        if said[rank]:
            memory.sent.copy_(gradient)
        if not senders:
            return
        if len(senders) == p:  # nothing old is left in the mean, nor its roundings
            memory.mean.copy_(gradient).div_(p)
            dist.all_reduce(memory.mean, group=self.group)
            return
        if not said[rank]:
            change = torch.zeros_like(change)
        if len(senders) == 1:
            dist.broadcast(change, group=self.group, group_src=senders[0])
        else:
            dist.all_reduce(change, group=self.group)
        memory.mean += change / p


def lazy_hook(
    state: LazyAggregation, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel, ours or PyTorch's."""
    with torch.no_grad():
        flat = torch.cat([p.detach().flatten() for p in bucket.parameters()])
        buffer = bucket.buffer()
        buffer.copy_(state.average(tuple(map(id, bucket.parameters())), buffer, flat))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def lazy_bytes(nbytes: int, num_senders: int, ranks: int) -> int:
    """Bytes that all ranks together send in one step for one bucket: rings and a chain of broadcasts."""
    if not 0 <= num_senders <= ranks:
        raise ValueError(f"of {ranks} ranks 0 to {ranks} send; got num_senders={num_senders}")
    if ranks == 1:
        return 0
    times = min(num_senders, 2)
    return 8 * ranks * (ranks - 1) + times * (ranks - 1) * nbytes
