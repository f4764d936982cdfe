"""Mistakes of each axis, made on purpose: each gives other gradients, losses or norms than one process, by far.

The same comparison, with the same layouts, passes without them (test_equal.py, test_mixtures.py).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import expert_parallel, launch
from dtcourse.hybrid import HybridConfig, HybridTraining, training
from dtcourse.parameters.placement import local
from dtcourse.pipeline_parallel import Pipeline
from dtcourse.verify import NotEqual, compare
from tests.hybrid.layouts import (
    GROUPED,
    MICRO_BATCHES,
    MIXTURE,
    TIED,
    together,
    truth,
    used,
)

FAR = 1e-3  # what is right differs by 1e-12
# The package's `parallelize` is the function.
parallelizing = importlib.import_module("dtcourse.hybrid.parallelize")
average, micro_batch_loss = training.average, HybridTraining.micro_batch_loss
own_tokens = HybridTraining.own_tokens


# --- one mistake each: instead of what -------------------------------------------------------------------------------


def not_averaged(module, groups):
    """No mean over ranks with other tokens but full sharding's own."""


def averaged_over_the_first_axis_alone(module, groups):
    average(module, groups[:1])


def divided_twice(module, groups):
    average(module, groups)
    for p in module.parameters():
        if p.grad is not None:
            local(p.grad).div_(2)


def averaged_once_more(module, groups):
    """Shards, as if ranks held the same."""
    average(module, groups)
    for p in module.parameters():
        if (
            p.grad is not None and len(p) % dist.get_world_size() == 0
        ):  # gloo aborts on unlike sizes
            dist.all_reduce(local(p.grad))
            local(p.grad).div_(dist.get_world_size())


def own_count(self, x):
    """Each rank divides by its own count: a mean of ranks' means is not that of all tokens, where they are uneven."""
    return x


def own_mean(self, logits_BSV, targets_BS):
    """The same of micro-batches."""
    self._mean_count = (targets_BS != -100).sum() * self.config.micro_batches
    return micro_batch_loss(self, logits_BSV, targets_BS)


def sum_of_micro_batches(self, logits_BSV, targets_BS):
    """picotron's: gradients are too large by the number of micro-batches."""
    return micro_batch_loss(self, logits_BSV, targets_BS) * self.config.micro_batches


def loss_of_own_words(self, logits_BSV, targets_BS):
    """Of this tensor rank's part of the vocabulary."""
    first = logits_BSV.shape[-1] * self.axes.rank("tp")
    inside = (targets_BS >= first) & (targets_BS < first + logits_BSV.shape[-1])
    own = torch.where(inside, targets_BS - first, -100)
    loss = F.cross_entropy(logits_BSV.flatten(0, 1), own.flatten(), reduction="sum")
    return loss * self.config.micro_batches / self._mean_count.to(loss)


def positions_from_zero(self, tokens_BS, targets_BS):
    """Each context rank numbers its tokens as if they were a sequence."""
    tokens_BS, targets_BS, positions_BS = own_tokens(self, tokens_BS, targets_BS)
    return tokens_BS, targets_BS, torch.arange(tokens_BS.shape[1]).expand_as(positions_BS)


def contiguous_tokens(self, tokens_BS, targets_BS):
    """Tokens in one order, and attention that takes them for being in another."""
    ranks, rank = self.axes.size("cp"), self.axes.rank("cp")
    places_S = torch.arange(tokens_BS.shape[1]).chunk(ranks)[rank]
    return tokens_BS[:, places_S], targets_BS[:, places_S], places_S.expand(len(tokens_BS), -1)


def attention_alone(model, axes):
    """Each context rank attends to its own tokens."""


def same_tokens(self, tokens_BS, targets_BS):
    """Context ranks that all take the first part."""
    with mock.patch.object(self.axes, "rank", return_value=0):
        return own_tokens(self, tokens_BS, targets_BS)


def no_copies(self):
    """Embedding and head are tied, lie on two stages, and know nothing of each other."""
    return []


def gates_of_one_copy(model, axes, groups):
    """Gates that count the tokens of one replica."""
    mesh = axes.submesh(groups, ["copies", "ep"])
    expert_parallel.expert_parallel(model, mesh, "ep", broadcast=False)


def no_broadcast(model):
    """Every rank starts with its own weights."""


@contextlib.contextmanager
def too_many_axes() -> Iterator[None]:
    """Tensor ranks taken for ranks with other tokens."""
    init = HybridTraining.__init__

    def made(self, stages, schedule, axes, *rest):
        init(self, stages, schedule, axes, *rest)
        self.token_groups.append(axes.group("tp"))

    with mock.patch.object(HybridTraining, "__init__", made):
        yield


def instead(owner, name, wrong):
    return lambda: mock.patch.object(owner, name, wrong)


def mean(wrong):
    return instead(training, "average", wrong)


def loss(wrong):
    return instead(HybridTraining, "micro_batch_loss", wrong)


def tokens(wrong):
    return instead(HybridTraining, "own_tokens", wrong)


def cut(name, wrong):
    return instead(parallelizing, name, wrong)


# name: (layout, model, the mistake)
MUTANTS = {
    "dp_replicate, no mean": ({"dp_replicate": 2}, TIED, mean(not_averaged)),
    "cp, no mean": ({"cp": 2}, TIED, mean(not_averaged)),
    "cp, the mean of another axis": (
        {"dp_replicate": 2, "cp": 2}, TIED, mean(averaged_over_the_first_axis_alone)),
    "dp_replicate, divided twice": ({"dp_replicate": 2}, TIED, mean(divided_twice)),
    "dp_shard, a mean of different shards": ({"dp_shard": 2}, TIED, mean(averaged_once_more)),
    "dp_replicate, no broadcast": ({"dp_replicate": 2}, TIED, cut("broadcast_model", no_broadcast)),
    "dp_shard, a mean of means": (
        {"dp_shard": 2}, TIED, instead(HybridTraining, "mean_over_ranks", own_count)),
    "cp, a mean of means": ({"cp": 2}, GROUPED, instead(HybridTraining, "mean_over_ranks", own_count)),
    "pp, a mean of micro-batches' means": ({"pp": 2}, TIED, loss(own_mean)),
    "pp, a sum over micro-batches": ({"pp": 2}, TIED, loss(sum_of_micro_batches)),
    "pp, tied weights apart": ({"pp": 2}, TIED, instead(Pipeline, "copies", no_copies)),
    "cp, positions": ({"cp": 2}, GROUPED, tokens(positions_from_zero)),
    "cp x pp, positions": ({"cp": 2, "pp": 2}, GROUPED, tokens(positions_from_zero)),
    "cp, order": ({"cp": 2}, TIED, tokens(contiguous_tokens)),
    "cp, no ring": ({"cp": 2}, TIED, cut("cut_sequence", attention_alone)),
    "cp, the same tokens": ({"cp": 2}, TIED, tokens(same_tokens)),
    "tp, a mean of slices": ({"tp": 2}, TIED, too_many_axes),
    "tp, loss of own words": ({"tp": 2}, GROUPED, loss(loss_of_own_words)),
    "ep, gates of one copy": (
        {"dp_replicate": 2, "dp_shard": 2, "ep": 2}, MIXTURE, cut("give_out_experts", gates_of_one_copy)),
}  # fmt: skip


def broken(name):
    degrees, model, mistake = MUTANTS[name]
    with mistake():
        return together(model, HybridConfig(**degrees, micro_batches=MICRO_BATCHES), steps=1)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_gives_other_gradients_on_every_axis(name):
    degrees, model, _ = MUTANTS[name]
    layout = HybridConfig(**degrees, micro_batches=MICRO_BATCHES)
    right = used(truth(model, layout.dp_replicate * layout.dp_shard).gradients[0])
    seen = 0
    for found in launch(broken, layout.ranks, name):
        try:
            compare(found.gradients[0], right, FAR, "gradient", norm=2)
        except NotEqual:
            seen += 1
    assert seen, "the comparison does not see it"
