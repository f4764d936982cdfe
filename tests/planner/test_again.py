"""What is computed and sent twice, and what the host does meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Measured, Precision, Software, predict
from tests.planner.conftest import known


def test_an_experts_last_product_is_run_again_for_the_gates_gradient(mixtral):
    layout, card = Layout(dp_shard=8, ep=8, stage=3), known("H100 SXM")

    def products(model, early):
        software = Software(recompute="full", early_stop=early)
        return predict(model, card, layout, Batch(8), software=software).parts["products"]

    assert products(mixtral, True) == pytest.approx(products(mixtral, False))
    one = replace(mixtral, shared=1)  # all tokens' own: nothing asks for its result
    assert products(one, True) < 0.999 * products(one, False)


def test_collectives_that_are_repeated_are_launched_again(gpt):
    launch, card = 1e-3, known("H100 SXM", launch=1e-3)
    layout = Layout(tp=8, sequence_parallel=True)

    def host(kind):
        software = Software(recompute=kind, collective_launches=2.0)
        return predict(gpt, card, layout, Batch(1), software=software).seconds

    def without(kind):
        software = Software(recompute=kind, collective_launches=0.0)
        return predict(gpt, card, layout, Batch(1), software=software).seconds

    again = host("full") - without("full") - (host("none") - without("none"))
    assert again == pytest.approx(4 * gpt.layers * 2 * launch)


def test_the_host_runs_on_while_messages_are_waited_for(gpt):
    """A step that is bound by the host takes as long as the host, whatever of its messages is seen."""
    layout = Layout(dp_shard=8, stage=3, copied=False)

    def step(rate, launch):
        network = Measured(
            collective=lambda ranks, stride, kind, nbytes: nbytes / rate, optimizer=0.0
        )
        card = known("H100 SXM", measured=network, launch=launch, channels=0)
        return predict(gpt, card, layout, Batch(8))

    fast, slow = step(1e15, 1e-3), step(5e10, 1e-3)
    assert step(5e10, 0.0).parts["sharding"] > 0.1 * step(5e10, 0.0).seconds
    assert slow.seconds == pytest.approx(fast.seconds)


@pytest.mark.parametrize(
    ("states", "number"), [("bf16 + master", 4), ("fp32", 4), ("bf16 only", 2)]
)
def test_an_optimizer_of_many_kernels_makes_one_number_for_each_of_a_moment(gpt, states, number):
    def temporary(optimizer):
        found = predict(
            gpt, "H100 SXM", Layout(), Batch(1), Precision(states, optimizer=optimizer),
            Software("unfused", recompute="full", optimizer_fused=False),
        ).memory[0]  # fmt: skip
        return found["temporary"] + found["activations"]

    assert temporary("adam") == pytest.approx(number * gpt.parameters)
    assert temporary("sgd") < 0.5 * number * gpt.parameters
