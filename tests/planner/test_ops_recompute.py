"""Selective recomputation: products, attention's core and reduce-scatters are kept, the rest is done again,
gathers and all-reduces too (by torchtitan's list of what it saves, torchtitan/distributed/activation_checkpoint.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Precision, Software, predict
from dtcourse.planner.memory import block_bytes
from dtcourse.planner.setting import Setting
from tests.planner.conftest import known
from tests.planner.test_sharding import by_bytes

RATE = 1e9
SOFTWARE = Software(imbalance=1.0, attention_achieved=1.0, collective_launches=2.0)


def more(model, layout, kind, early_stop=False):
    """Seconds that the messages of this kind take longer with the recomputation, of one block."""
    card = known("H100 SXM", measured=by_bytes(RATE))
    none, ops = (
        predict(
            model, card, layout, Batch(layout.data), None,
            replace(SOFTWARE, recompute=each, early_stop=early_stop),
        ).parts[kind]
        for each in ("none", "ops")
    )  # fmt: skip
    return (ops - none) / model.layers


def test_what_was_scattered_is_kept_and_gathered_again(llama):
    one = 2 * llama.sequence * llama.hidden / RATE  # a message of all of a sequence's tokens
    assert more(llama, Layout(tp=2, sequence_parallel=True), "tensor") == pytest.approx(2 * one)


@pytest.mark.parametrize(("early_stop", "sums"), [(False, 2), (True, 1)])
def test_sums_are_made_again_but_for_one_that_nobody_asks_for(llama, early_stop, sums):
    layout = Layout(tp=2, overlap_backward=False)
    one = 2 * llama.sequence * llama.hidden / RATE
    assert more(llama, layout, "tensor", early_stop) == pytest.approx(sums * one)


def test_tokens_go_to_their_experts_again(mixtral):
    one = 2 * mixtral.sequence * mixtral.top_k * mixtral.hidden / RATE
    assert more(mixtral, Layout(dp_shard=2, ep=2), "experts") == pytest.approx(2 * one)


@pytest.mark.parametrize(("context", "sent"), [("ring", 0), ("all_gather", 0), ("ulysses", 1)])
def test_the_core_that_is_kept_asks_for_no_keys_again(llama, context, sent):
    layout = Layout(dp_shard=2, cp=2, context=context)
    heads = 2 * llama.sequence / 2 * 2 * (llama.queries + llama.keys) / RATE
    assert more(llama, layout, "context") == pytest.approx(sent * heads)


def kept(model, layout, experts=False):
    software = replace(SOFTWARE, recompute="ops")
    s = Setting(model, known("H100 SXM"), layout, Batch(layout.data), Precision(), software)
    return block_bytes(s, experts)


def test_a_product_is_kept_before_and_after_its_sum_over_tensor_ranks(llama):
    """Two reduce-scatters, each of a rank's tokens; and the last product, of all tokens, not yet summed."""
    tp, all_ = 4, 2 * llama.sequence * llama.hidden
    plain, summed, cut = (
        kept(llama, layout)
        for layout in (Layout(), Layout(tp=tp), Layout(tp=tp, sequence_parallel=True))
    )
    inside = plain - 2 * all_  # all but the block's input and its last product
    assert summed == pytest.approx(2 * all_ + inside / tp)
    assert cut == pytest.approx(all_ + 3 * all_ / tp + inside / tp)


def test_shared_experts_are_kept_like_a_dense_mlp(mixtral):
    shared = replace(mixtral, shared=2)
    more_ = kept(shared, Layout(), experts=True) - kept(mixtral, Layout(), experts=True)
    assert more_ == 2 * mixtral.sequence * 2 * mixtral.expert
