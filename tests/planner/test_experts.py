"""Layouts of experts, hybrid's and Megatron's: what they send, multiply and hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Measured, Precision, Software, predict
from dtcourse.planner.block import Block
from dtcourse.planner.messages import FORWARD, of_block
from dtcourse.planner.network import Group, experts_group
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import exchange
from dtcourse.planner.stage import Stages
from tests.planner.conftest import known


def setting(model, layout, micro_batch=1):
    software = Software(imbalance=1.0, attention_achieved=1.0, collective_launches=2.0)
    return Setting(model, known("H100 SXM"), layout, Batch(64, micro_batch), Precision(), software)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_all_to_all_carries_each_token_as_often_as_it_is_sent(mixtral, top_k):
    model, layout = replace(mixtral, top_k=top_k), Layout(dp_shard=8, stage=3, ep=8)
    s = setting(model, layout)
    sent = of_block(s, True, 0.0, 0.0)
    one = Group(8).seconds(s.hardware, "all_to_all", top_k * 2.0 * model.sequence * model.hidden)
    assert sent.seconds[FORWARD]["experts"] == pytest.approx(2 * one)  # there and back


def test_the_fullest_expert_is_waited_for(mixtral):
    layout, card = Layout(dp_shard=8, stage=3, ep=8), known("H100 SXM")
    even, uneven = (
        predict(mixtral, card, layout, Batch(64, 8), software=Software(imbalance=n))
        for n in (1.0, 1.5)
    )
    assert uneven.parts["experts"] > 1.4 * even.parts["experts"]
    assert uneven.parts["products"] > 1.2 * even.parts["products"]


MEGATRON = Layout(dp_shard=2, tp=4, ep=8, expert_tp=1, sequence_parallel=True, stage=1)
OURS = Layout(dp_shard=8, tp=4, ep=8, sequence_parallel=True, stage=1)


def test_experts_spread_over_tensor_ranks_are_whole_and_as_many_operations(mixtral):
    megatron, ours = (Block(setting(mixtral, layout), True) for layout in (MEGATRON, OURS))
    assert megatron.expert_parameters() == mixtral.mlp_parameters(14336)
    assert ours.expert_parameters() == mixtral.mlp_parameters(14336) / 4
    flops = [sum(each.flops for each in block.kernels()) for block in (megatron, ours)]
    assert flops[0] == pytest.approx(flops[1], rel=0.01)


def test_their_group_lies_across_tensor_ranks_and_their_copies_are_what_is_left(mixtral):
    assert experts_group(MEGATRON) == Group(8, 1)
    assert experts_group(replace(MEGATRON, ep=4, expert_tp=2)) == Group(4, 2)
    assert (MEGATRON.expert_copies, OURS.expert_copies) == (1, 1)
    few = replace(MEGATRON, dp_shard=4)
    assert few.expert_copies == 2
    s = setting(mixtral, few)
    _, weights = Stages(s).blocks[True]
    rest = exchange(replace(weights, experts=0.0), s).reduce
    nbytes = 2 * weights.experts
    assert exchange(weights, s).reduce - rest == pytest.approx(
        Group(2, 8).seconds(s.hardware, "reduce_scatter", nbytes)
    )


def test_an_expert_cut_over_ranks_gathers_the_rows_of_all_of_them(mixtral):
    """Behind the all-to-all each rank with a slice needs all rows that the others were sent: top_k times the tokens."""
    s = setting(mixtral, Layout(tp=8, sequence_parallel=True))
    dense, experts = (
        of_block(s, kind, 0.0, 0.0).seconds[FORWARD]["tensor"] for kind in (False, True)
    )
    one = 2.0 * mixtral.sequence * mixtral.hidden

    def pair(nbytes):
        kinds = ("all_gather", "reduce_scatter")
        return sum(Group(8).seconds(s.hardware, kind, nbytes) for kind in kinds)

    assert experts - dense == pytest.approx(pair(2 * one) - pair(one))


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"tp": 4, "expert_tp": 3}, r"tp\(4\) is no multiple of expert_tp\(3\)"),
        ({"tp": 4, "ep": 8, "expert_tp": 1, "sequence_parallel": True},
         r"1 x tp\(4\) = 4 is no multiple of ep\(8\) x expert_tp\(1\)"),
        ({"tp": 4, "ep": 4, "expert_tp": 1}, "sequence_parallel=True"),
        ({"dp_shard": 3, "ep": 3}, r"experts\(8\) is no multiple of ep\(3\)"),
    ],
)  # fmt: skip
def test_experts_that_do_not_divide_say_which_equation_fails(mixtral, layout, said):
    with pytest.raises(ValueError, match=said):
        predict(mixtral, "H100 SXM", Layout(**layout), Batch(24))


def test_sharded_experts_that_one_rank_has_are_gathered_by_nobody(mixtral):
    layout = Layout(dp_shard=8, stage=3, ep=8)
    held = [
        predict(replace(mixtral, expert_ffn=ffn), "H100 SXM", layout, Batch(8)).memory[0][
            "gathered"
        ]
        for ffn in (14336, 28672)
    ]
    assert held[0] == pytest.approx(held[1], rel=0.01)


def test_gradients_of_experts_that_nobody_shares_are_added_up(mixtral):
    """Each micro-batch's are added to those before: 2 bytes read, 2 read and 2 written of each of a rank's experts'."""
    layout, card = Layout(dp_shard=8, ep=8, stage=3), known("H100 SXM")
    one, four = (predict(mixtral, card, layout, Batch(8 * m)).parts["memory"] for m in (1, 4))
    added = 6 * mixtral.layers * mixtral.mlp_parameters(14336) / (card.hbm * card.hbm_share)
    assert four - 4 * one >= 4 * added * 0.999


def test_a_rank_with_all_experts_has_all_its_rows_however_they_are_spread(mixtral):
    card, batch = known("H100 SXM"), Batch(8)
    for layout, same in (
        (Layout(dp_shard=8, stage=3), True),
        (Layout(dp_shard=8, ep=8, stage=3), False),
    ):
        even, uneven = (
            predict(mixtral, card, layout, batch, software=Software(imbalance=n))
            for n in (1.0, 1.5)
        )
        assert (uneven.parts["products"] == even.parts["products"]) is same
        grows = uneven.memory[0]["activations"] / even.memory[0]["activations"]
        assert grows == 1 if same else 1.1 < grows < 1.5


def tensor_seconds(model, **software):
    """A block's messages on tp, seconds of one step of one micro-batch, at a byte a second."""
    card = known("H100 SXM", measured=Measured(collective=lambda *args: float(args[-1])))
    layout = Layout(tp=2, dp_shard=2, ep=2, sequence_parallel=True)
    given = Software(attention_achieved=1.0, collective_launches=2.0, **software)
    found = predict(model, card, layout, Batch(2), None, given)
    return found.parts["tensor"] / model.layers


def test_a_full_rank_gathers_its_experts_rows_from_its_tensor_ranks(mixtral):
    even, full = (tensor_seconds(mixtral, imbalance=each) for each in (1.0, 1.3))
    rows = mixtral.sequence * mixtral.top_k * mixtral.hidden * 2  # bytes of the rows of both ranks
    assert full - even == pytest.approx(0.3 * 4 * rows)  # gathered and scattered, there and back


def test_of_shared_experts_the_last_sum_alone_is_not_made_again(mixtral):
    """Three pairs of messages: attention's, the shared experts' and the experts' slices."""
    model = replace(mixtral, shared=2)
    whole, stopped = (
        tensor_seconds(model, imbalance=1.0, recompute="full", early_stop=each) for each in (False, True)
    )  # fmt: skip
    none = tensor_seconds(model, imbalance=1.0, recompute="none")
    one = mixtral.sequence * mixtral.hidden * 2
    slices = 2 * mixtral.top_k * one  # gathered and scattered: each token as often as it is sent
    assert whole - none == pytest.approx(4 * one + slices)
    assert whole - stopped == pytest.approx(one)
