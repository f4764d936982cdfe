"""Whose tokens count together: a rank's own, as one process does group by group, or everybody's;
and what that costs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.expert_parallel import average_gradients, expert_parallel, full_gradients
from dtcourse.verify import compare, gradients_of
from tests.expert_parallel.mixtures import E, alone, loss_of, mixture, tokens

CASES = (
    {"balancing": 1.0, "z": 0.1},
    {"gate": "switch", "capacity_factor": 0.6},
    {"gate": "expert choice", "balancing": 1.0},
)


def each_rank_for_itself():
    mesh = init_device_mesh("cpu", (2, 2))
    W, me = dist.get_world_size(), dist.get_rank()
    parts, tried = tokens([5, 7, 9, 2]), 0
    for options in CASES:
        plain, moe = mixture(**options), mixture(**options)
        dropped = []
        for x in parts:  # one process, group by group: the mean of the groups' losses
            (loss_of(plain, x, 1 / len(x)) / W).backward()
            dropped.append((plain.num_dropped, plain.counts_E.tolist()))
        expert_parallel(moe, mesh, scope="rank")
        with traffic.counting() as counted:
            loss_of(moe, parts[me], 1 / len(parts[me])).backward()
        assert counted.operations == ["all_to_all"], "nothing is sent but rows and their counts"
        average_gradients(moe, mesh)
        compare(full_gradients(moe), gradients_of(plain), 1e-10, f"{options}: gradient", norm=2)
        assert (moe.num_dropped, moe.counts_E.tolist()) == dropped[me]
        assert any(n for n, _ in dropped) == ("capacity_factor" in options)
        tried += 1
    return tried


def test_a_ranks_own_tokens_are_what_one_process_computes_group_by_group():
    assert [*launch(each_rank_for_itself, 4, backend="ring")] == [len(CASES)] * 4


def sent_for_scope():
    """Bytes by operation, forward and backward, of one layer on ranks with 6 tokens each."""
    mesh, me = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank()
    found = []
    for options in CASES:
        moe = expert_parallel(mixture(**options), mesh)
        x = tokens([6] * dist.get_world_size())[me]
        with traffic.counting() as counted:
            loss_of(moe, x, 1.0).backward()
        found.append(
            {
                (name, way): counted.bytes_sent(operation=name, phase=way)
                for name in ("all_reduce", "all_gather")
                for way in ("forward", "backward")
            }
        )
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_bytes_of_the_global_scope_are_the_formulas(p):
    losses = 0
    for found in launch(sent_for_scope, p, backend="ring"):
        for sent, gathered in zip(found, (0, 8 * 1 * E, 8 + 6 * 8 * E), strict=True):
            assert sent["all_gather", "forward"] == (p - 1) * gathered
            assert sent["all_gather", "backward"] == 0
            assert sent["all_reduce", "forward"] == sent["all_reduce", "backward"]
        losses += found[0]["all_reduce", "forward"]
    # A ring sends 2 (p - 1)/p of the vector per rank: of all ranks together exactly, whatever part is whose.
    assert losses == 2 * (p - 1) * 8 * (2 * E + 2)


def balanced_by_bias():
    """Twenty updates of the biases: the same on all ranks, and one process's."""
    mesh, me = init_device_mesh("cpu", (2, 2)), dist.get_rank()
    plain, moe = mixture("by bias"), expert_parallel(mixture("by bias"), mesh)
    for step in range(20):
        parts = tokens([6] * 4, seed=step)
        plain(torch.cat(parts))
        moe(parts[me])
        for one in (plain, moe):
            one.gate.update(one.counts_E)
    assert torch.equal(moe.gate.bias_E, plain.gate.bias_E)
    return moe.gate.bias_E


def test_biases_stay_equal_on_all_ranks():
    biases = launch(balanced_by_bias, 4)
    assert all(torch.equal(b, biases[0]) for b in biases)
    assert biases[0].abs().max() > 0


def single_precision():
    """float32 against one process in double."""
    mesh, me, W = init_device_mesh("cpu", (2, 2)), dist.get_rank(), dist.get_world_size()
    parts, worst = tokens([6] * W), 0.0
    for options in ({"z": 0.1}, {"capacity_factor": 0.7, "kind": "swiglu"}):
        right = alone(mixture(**options), parts)
        moe = expert_parallel(mixture(**options).float(), mesh)
        loss_of(moe, parts[me].float(), 1 / 6).backward()
        average_gradients(moe, mesh)
        found = full_gradients(moe)
        right = {name: right[name] for name in found}
        worst = max(worst, compare(found, right, 1e-5, norm=2))
    return worst


def test_single_precision_is_within_its_rounding():
    assert 1e-9 < max(launch(single_precision, 4)) < 1e-5
