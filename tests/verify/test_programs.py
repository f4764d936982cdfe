"""A Program's truth is worked out here a second time, by hand, with torch.autograd.grad and no optimizer."""

from __future__ import annotations

import pytest
import torch

from dtcourse.verify import compare
from dtcourse.verify.chains import Block
from dtcourse.verify.harness import LEARNING_RATE, train
from dtcourse.verify.programs import Forward, MicroBatch, Program, in_one_process

NOBODY = frozenset()
WHERE = frozenset({1})
TWO_RANKS = Program(
    ranks=2,
    blocks=(Block(), Block("scale", optional=True), Block()),
    steps=(
        (
            MicroBatch((Forward((3, 1), (NOBODY, NOBODY)),), sync=False),
            MicroBatch((Forward((2, 2), (NOBODY, WHERE)), Forward((1, 4), (WHERE, WHERE)))),
        ),
        (MicroBatch((Forward((2, 0), (WHERE, WHERE)),)),),
    ),
)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["SGD", "momentum and decay"]
)
def test_the_truth_is_sgd_on_the_mean_of_the_ranks_losses(options):
    program = Program(TWO_RANKS.ranks, TWO_RANKS.blocks, TWO_RANKS.steps, **options)
    truth = in_one_process(program)
    model = program.build(0)
    parameters = dict(model.named_parameters())
    momenta: dict[str, torch.Tensor] = {}
    for step in range(len(program.steps)):
        losses = [
            part(model)
            for rank in range(2)
            for backward in program.plan(rank)[step]
            for part in backward.losses
        ]
        loss = sum(losses) / 2
        found = dict(
            zip(
                parameters,
                torch.autograd.grad(loss, list(parameters.values()), allow_unused=True),
                strict=True,
            )
        )
        assert truth.steps.losses[step] == pytest.approx(loss.item())
        assert compare(truth.steps.gradients[step], found) < 1e-12
        with torch.no_grad():
            for name, gradient in found.items():
                if gradient is None:
                    continue
                change = gradient + program.weight_decay * parameters[name]
                if program.momentum and name in momenta:
                    change = program.momentum * momenta[name] + change
                momenta[name] = change
                parameters[name] -= LEARNING_RATE * change
    assert (
        compare(
            truth.steps.parameters,
            {n: p.detach() for n, p in parameters.items()},
            1e-12,
            "parameter",
        )
        < 1e-12
    )


def test_it_knows_which_rank_used_which_parameter():
    truth = in_one_process(TWO_RANKS)
    optional, all_others = (
        {"layers.1.weight"},
        set(truth.trained) - {"layers.1.weight", "layers.1.bias"},
    )
    assert "layers.1.bias" not in truth.trained, "a scale has none"
    first, second = truth.used[0]
    assert first == [all_others | optional] * 2
    assert second == [all_others | optional, all_others]
    assert truth.used[1] == [[all_others, all_others]], (
        "a rank without rows has gradients of zero, not none"
    )


def test_one_rank_s_plan_is_its_part_of_the_truth():
    """With one rank the truth is what harness.train makes of its plan."""
    alone = Program(
        ranks=1,
        blocks=TWO_RANKS.blocks,
        steps=(
            (
                MicroBatch((Forward((3,), (NOBODY,)),), sync=False),
                MicroBatch((Forward((2,), (WHERE,)),)),
            ),
        ),
        momentum=0.5,
    )
    model = alone.build(0)
    steps = train(
        model, model, alone.plan(0), lambda m: torch.optim.SGD(m.parameters(), **alone.sgd_options)
    )
    truth = in_one_process(alone).steps
    assert compare(steps.gradients[0], truth.gradients[0]) < 1e-12
    assert compare(dict(steps.parameters), dict(truth.parameters)) < 1e-12


def test_ranks_and_steps_have_data_of_their_own():
    shown = []
    for rank in range(2):
        for step in TWO_RANKS.plan(rank):
            for backward in step:
                for loss in backward.losses:
                    loss(lambda x, _: (shown.append(x), (x, []))[1])
    filled = [tuple(x.flatten().tolist()) for x in shown if x.numel()]
    assert len(set(filled)) == len(filled) == 7
    assert [len(x) for x in shown] == [3, 2, 1, 2, 1, 2, 4, 0]


def test_it_says_what_it_is():
    said = str(
        Program(
            2, TWO_RANKS.blocks, TWO_RANKS.steps, momentum=0.9, set_to_none=False, returns="dict"
        )
    )
    assert "2 ranks, SGD(lr=0.1, momentum=0.9), zero_grad(set_to_none=False)" in said
    assert "block 1: scale, optional" in said and "returns a dict" in said
    assert "in no_sync(): backward of forward(3 and 1 rows)" in said
    assert "forward(2 and 2 rows; rank 1 without block 1)" in said
