"""What trains a model on a mesh: steps of its pipeline, gradients' means, the loss, the norm.

One step on a rank:

1. tokens and targets are this copy's whole samples; the targets are shifted already. Then the sequence is cut over cp:
   the other way round each part would lose its last target.
2. All ranks with different tokens add up how many targets count. Each rank's loss is the sum over its own, divided by
   the mean count per rank: then the mean of the ranks' losses is the mean over all tokens, however uneven they are.
3. The schedule runs: micro-batches go through the stages; full sharding reduces gradients in each backward.
4. What full sharding has not averaged is averaged over the axes with different tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dtcourse import sequence_parallel, tensor_parallel
from dtcourse.emulation import clock
from dtcourse.hybrid.axes import DATA, TOKENS, Axes
from dtcourse.hybrid.layout import Layout
from dtcourse.hybrid.same_batch import check_same_batch
from dtcourse.lookup import check_length
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.averaging import average
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.replicas import Group
from dtcourse.pipeline_parallel import Pipeline, Schedule, Stage
from dtcourse.pipeline_parallel.batch import check_scale

IGNORED = -100


class HybridTraining:
    """Steps of a model that `parallelize` has cut.

    module:     this rank's part. States, gradients, norms and checkpoints of it are the whole model's: full_state_dict,
                full_gradients (parameters/whole.py), dtcourse.checkpoint. For the optimizer: module.parameters()
    pipeline:   runs the schedule
    layout:     who holds what; print it
    data_rank, data_ranks: which part of the data this rank reads, of how many: a sampler's rank and num_replicas
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        axes: Axes,
        groups_of_experts: tuple[Group, Group] | None,
        vocab: int,
        max_length: int,
    ) -> None:
        config = axes.config
        self.axes, self.config, self.vocab, self.max_length = axes, config, vocab, max_length
        self._first = True  # no step was begun yet
        # Each micro-batch's loss counts 1 / m there, and is a part of a sum here.
        self.pipeline = Pipeline(
            stages,
            schedule,
            self.micro_batch_loss,
            axes.group("pp"),
            weigh=lambda targets: 1.0,
            recompute=config.recompute,
            reduce_once=config.reduce_once,
        )
        self.module = self.pipeline.module
        self.layout = Layout(axes, self.module)
        self.data_rank, self.data_ranks = axes.rank(*DATA), axes.size(*DATA)
        folded = groups_of_experts or (axes.group("dp_shard"), axes.group("cp"))
        self.token_groups = [
            group
            for group in (axes.group("dp_replicate"), *folded)
            if dist.get_world_size(group) > 1
        ]
        self._mean_count = torch.ones(())
        self._places: dict[tuple[int, torch.device], Tensor] = {}

    def step(
        self,
        tokens_BS: Tensor,
        targets_BS: Tensor,
        scale: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor | None:
        """Forward and backward of one batch: adds the gradients of its mean loss to every `.grad`. All ranks call it.

        tokens_BS:  the samples of this rank's part of the data (`data_rank`), whole sequences: the same on all of its
                    pp, cp and tp ranks
        targets_BS: the token that follows each; -100 where none counts
        scale:      of a loss scaler, as Pipeline.step's

        Returns the mean loss per token over all ranks where the last stage is, with the gates' losses; None elsewhere.
        It is a tensor: the host waits for its value where somebody asks for it, and not here.
        Raises ValueError where the two shapes differ, the batch does not divide, or a sequence is longer than the
        model's max_length; and in the first step, on all ranks, where ranks of one part of the data have other samples
        (not on an emulated cluster).
        Gradients of a step before are still there: zero_grad first.
        """
        if scale is not None:
            check_scale(scale)
        # All ranks begin their first step, and raise together or not at all. An emulated step is measured, and what is
        # asked once would be in its time.
        if self._first and clock.installed() is None:
            raise_on_all_ranks(lambda: self._check_batch(tokens_BS, targets_BS))
            check_same_batch(self.axes, tokens_BS, targets_BS)
        self._first = False
        self._check_batch(tokens_BS, targets_BS)
        tokens_BS, targets_BS, positions_BS = self.own_tokens(tokens_BS, targets_BS)
        self._mean_count = self.mean_over_ranks((targets_BS != IGNORED).sum().double())
        loss = self.pipeline.step((tokens_BS, positions_BS), targets_BS, scale)
        average(self.module, self.token_groups)
        return None if loss is None else self.mean_over_ranks(loss.double())

    def _check_batch(self, tokens_BS: Tensor, targets_BS: Tensor) -> None:
        kinds = [
            str(t.dtype) if isinstance(t, Tensor) else type(t).__name__
            for t in (tokens_BS, targets_BS)
        ]
        if kinds[0] not in ("torch.int64", "torch.int32") or kinds[1] != "torch.int64":
            raise ValueError(
                f"tokens and targets are tensors of whole numbers, torch.long; got {' and '.join(kinds)}"
            )
        if tokens_BS.dim() != 2 or targets_BS.shape != tokens_BS.shape:
            raise ValueError(
                "tokens and targets have one shape, (samples, tokens of each); got "
                f"{tuple(tokens_BS.shape)} and {tuple(targets_BS.shape)}"
            )
        if tokens_BS.device != targets_BS.device or tokens_BS.is_meta:
            raise ValueError(
                "tokens and targets are on one device, with values; got "
                f"{tokens_BS.device} and {targets_BS.device}"
            )
        self.config.check_batch(*tokens_BS.shape)
        check_length(tokens_BS.shape[-1], self.max_length)

    def own_tokens(self, tokens_BS: Tensor, targets_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """This cp rank's part of each sequence, and where it is in the whole one."""
        places_S = self.own_places(tokens_BS.shape[1], tokens_BS.device)
        own_tokens, own_targets = (x.index_select(1, places_S) for x in (tokens_BS, targets_BS))
        return own_tokens, own_targets, places_S.expand(len(tokens_BS), -1)

    def own_places(self, length: int, device: torch.device) -> Tensor:
        """Those of this cp rank. They go to the device once for each length: to copy them is to wait."""
        if (length, device) not in self._places:
            ranks, rank, order = self.axes.size("cp"), self.axes.rank("cp"), self.config.order
            places_S = sequence_parallel.positions(length, rank, ranks, order)
            self._places[length, device] = places_S.to(device)
        return self._places[length, device]

    def micro_batch_loss(self, logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
        """Its targets' losses, added up, in units of a rank's mean count; times m, since the pipeline takes a mean."""
        if self.axes.size("tp") > 1:
            group = self.axes.group("tp")
            total = tensor_parallel.cross_entropy(
                logits_BSV, targets_BS, group, num_classes=self.vocab, reduction="sum"
            )
        else:
            flat = logits_BSV.flatten(0, 1), targets_BS.flatten()
            total = F.cross_entropy(*flat, reduction="sum")
        return total * self.config.micro_batches / self._mean_count.to(total)

    def mean_over_ranks(self, x: Tensor) -> Tensor:
        """Of a number per rank, over all ranks with different tokens."""
        for group in self.token_groups:
            dist.all_reduce(x, group=group)
        return x / self.axes.size(*TOKENS)

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scales all gradients so that the whole model's norm is at most `max_norm`; returns the norm before."""
        return clip_grad_norm(self.module, max_norm, norm_type)
