"""Parts of gradients summed once for several backwards are those summed in each, in fewer messages, under any outer
technique, beside what was there before."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.parameters import partial_gradients
from dtcourse.parameters.partial_gradients import SumOverRanks, hooks_of, summed_once
from dtcourse.parameters.whole import full_gradients
from dtcourse.verify import NotEqual, compare
from tests.pairs.layouts import GPT2, Layout, Training, batch, share

OUTER = ("nothing", "fully_shard", "FullyShardedDataParallel", "ZeRO-1", "ZeRO-2")


def passes(training, *numbers):
    for number in numbers:
        x, y = (share(training.layout, training.mesh, t) for t in batch(GPT2, number))
        F.cross_entropy(training.wrapped(x).flatten(0, 1), y.flatten()).backward()


def all_reduces(training, once):
    """Whole gradients of three backwards, and the all-reduces of the last two."""
    passes(training, 0)
    with traffic.counting() as counted:
        if once:
            with summed_once(training.model.parameters()):
                passes(training, 1, 2)
        else:
            passes(training, 1, 2)
    return full_gradients(training.wrapped), counted.calls(operation="all_reduce")


def both_ways():
    found = {}
    for outer in OUTER:
        made = [Training(Layout(outer, "sequence", (2, 2)), GPT2, seed=0) for _ in range(3)]
        hooked = [
            p
            for p in made[0].model.parameters()
            if p.requires_grad and any(isinstance(hook, SumOverRanks) for hook in hooks_of(p))
        ]
        each, once = (all_reduces(made[i], once=bool(i)) for i in range(2))
        with patch.object(partial_gradients, "sum_together", lambda *_: None):
            never = all_reduces(made[2], once=True)
        found[outer] = each, once, never, len(hooked)
    return found


def test_once_is_as_each_time_and_one_message_instead_of_one_per_parameter_and_backward():
    for rank in launch(both_ways, 4, backend="ring"):
        for outer, (each, once, never, parameters) in rank.items():
            compare(once[0], each[0], 1e-12, f"{outer}: gradient", norm=2)
            # Two norms and two biases of each of two blocks, and the last norm; one weight is frozen.
            assert parameters == 2 * 6 + 2 - 1
            assert each[1] - once[1] == 2 * parameters - 1, outer
            with pytest.raises(NotEqual, match=r"norm|bias"):  # a mutant
                compare(never[0], each[0], 1e-12, norm=2)


def after_an_error():
    training = Training(Layout("nothing", "sequence", (1, 2)), GPT2, seed=0)
    passes(training, 0)
    before = full_gradients(training.model)
    with pytest.raises(KeyError), summed_once(training.model.parameters()):
        raise KeyError
    compare(full_gradients(training.model), before, 0.0)
    training.optimizer.zero_grad()
    passes(training, 0)
    return compare(full_gradients(training.model), before, 1e-12, norm=2)


def test_what_was_there_stays_where_something_fails_and_hooks_go_on():
    launch(after_an_error, 2)
