"""The engine over NCCL's order rule (tests/nccl_order.py): no early receive keeps a send from its turn."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse.pipeline_parallel import schedules
from dtcourse.pipeline_parallel.pipedream import PipeDream
from tests import nccl_order
from tests.pipeline_parallel.samples import MAKE
from tests.pipeline_parallel.test_engine import one_process, train_each, trained_as
from tests.pipeline_parallel.test_refusals import refused

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/pipeline_parallel/")


@pytest.mark.parametrize("rule", nccl_order.RULES)
@pytest.mark.parametrize("p", [2, 4])
def test_each_schedule_trains_for_two_steps_and_evaluates(rule, p):
    made = {name: make(p, 8) for name, make in MAKE.items()}
    losses, expected = one_process(13, 2)
    run = nccl_order.launch(train_each, p, rule, made, 13, 2)
    for name in made:
        print(name)
        trained_as(losses, expected, [of_rank[name] for of_rank in run], 13)


def pipedream(vertical_sync: bool) -> list[list[float] | None]:
    torch.manual_seed(0)
    stages = [nn.Linear(4, 4) for _ in range(dist.get_world_size())]
    x = torch.randn(16, 4)
    engine = PipeDream(
        [stages[dist.get_rank()]],
        schedules.pipedream(len(stages), 8),
        F.mse_loss,
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        vertical_sync=vertical_sync,
    )
    return [engine.run(x, x) for _ in range(2)]


@pytest.mark.parametrize("rule", ["pair", "group"])
def test_pipedream_runs(rule):
    first, second = nccl_order.launch(pipedream, 4, rule, True, timeout=60)[3]
    assert second[-1] < first[0]


@pytest.mark.parametrize("rule", ["pair", "group"])
@pytest.mark.parametrize("name", ["1F1B", "ZB-V"])
def test_a_refused_step_leaves_nothing_that_stands_before_the_next(rule, name):
    for said in nccl_order.launch(refused, 3, rule, MAKE[name](3, 4)):
        assert len(said) == 6
