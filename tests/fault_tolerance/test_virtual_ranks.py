"""The same bits on 1, 2, 3 and 4 ranks, also where a run goes on on another number of them; and DDP's gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.data import DistributedSampler
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import Checkpoints, TrainingState, VirtualRanks
from dtcourse.fault_tolerance.virtual_ranks import holders, pairs
from dtcourse.verify import compare
from tests.turns import taking_turns

VIRTUAL, SAMPLES, BATCH = 4, 64, 4
DATA = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))


def module():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


class Run:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = VirtualRanks(module(), VIRTUAL, seed=seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.samplers = [DistributedSampler(SAMPLES, VIRTUAL, v) for v in range(VIRTUAL)]
        self.state = TrainingState.of(
            self.model,
            self.optimizer,
            shared={"draws": self.model.states, "data": self.samplers[0]},
        )

    def train(self, steps):
        losses = []
        for _ in range(steps):
            reads = {v: iter(self.samplers[v]) for v in self.model.mine}
            x = {v: DATA[[next(read) for _ in range(BATCH)]] for v, read in reads.items()}
            losses.append(
                self.model.backward(lambda v, x=x: self.model(x[v]).square().mean()).item()
            )
            self.optimizer.step()
            for sampler in self.samplers:
                sampler.advance(BATCH)
        return losses

    def bits(self):
        return b"".join(value.numpy().tobytes() for value in self.model.state_dict().values())


def undisturbed(root):
    run = Run()
    losses = run.train(2)
    Checkpoints(root).save(2, run.state.snapshot(), run.state.about())
    losses += run.train(2)
    return losses, run.bits()


def resumed(root):
    run = Run(seed=9)
    assert run.state.load(Checkpoints(root).latest()) == 2
    for sampler in run.samplers[1:]:
        sampler.load_state_dict(run.samplers[0].state_dict())
    return run.train(2), run.bits()


def test_the_same_bits_on_any_number_of_ranks_and_where_it_goes_on_on_another(tmp_path):
    losses, bits = launch(undisturbed, 4, tmp_path)[0]
    for said in launch(resumed, 2, tmp_path):
        assert said == (losses[2:], bits)
    for said in launch(undisturbed, 3, tmp_path / "3"):
        assert said == (losses, bits)


@pytest.mark.parametrize(
    ("ranks", "later"),
    taking_turns((3, 1), (1, 4), (2, 3), about="dtcourse/fault_tolerance/", several=True),
)
def test_from_any_number_of_ranks_to_any_other(ranks, later, tmp_path):
    losses, bits = launch(undisturbed, ranks, tmp_path)[0]
    assert (losses, bits) == launch(undisturbed, 4, tmp_path / "4")[0]
    for said in launch(resumed, later, tmp_path):
        assert said == (losses[2:], bits)


def beside_ddp():
    """One step of each, without dropout: gradients in double, on as many ranks as virtual ones."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    ours, ddp = VirtualRanks(copy.deepcopy(plain), VIRTUAL), DistributedDataParallel(plain)
    shares = DATA.double().chunk(VIRTUAL)
    ours.backward(lambda v: ours(shares[v]).square().mean())
    ddp(shares[dist.get_rank()]).square().mean().backward()
    return [{n: p.grad.clone() for n, p in one.module.named_parameters()} for one in (ours, ddp)]


def test_gradients_are_those_of_ddp():
    for ours, ddp in launch(beside_ddp, VIRTUAL):
        compare(ours, ddp, 1e-12, "gradient")


def sent_in_a_step():
    """Bytes that this rank sends, the broadcast apart."""
    model = VirtualRanks(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), VIRTUAL)
    with traffic.counting() as counter:
        model.backward(lambda v: model(DATA.chunk(VIRTUAL)[v]).square().mean())
    return sum(
        row.bytes
        for row in counter.rows
        if row.direction == traffic.SENT and row.operation != "broadcast"
    )


@pytest.mark.parametrize("ranks", [3, *taking_turns(2, 4, about="dtcourse/fault_tolerance/")])
def test_bytes_are_those_of_the_formula(ranks):
    """A part per pair on two ranks, each of N gradients and the loss."""
    each = 4 * (6 * 8 + 8 + 8 * 3 + 3 + 1)
    where = holders(VIRTUAL, ranks)
    expected = [
        each * sum(where[b] == r != where[a] for a, b in pairs(VIRTUAL)) for r in range(ranks)
    ]
    assert list(launch(sent_in_a_step, ranks, backend="ring")) == expected
    assert sum(expected) == (ranks - 1) * each


@pytest.mark.parametrize("number", range(1, 10))
def test_the_tree_adds_each_part_once(number):
    parts = {v: {v} for v in range(number)}
    for left, right in pairs(number):
        assert not parts[left] & parts[right]
        parts[left] |= parts.pop(right)
    assert parts == {0: set(range(number))}


def too_few():
    with pytest.raises(ValueError, match="1 virtual ranks cannot be given to 2 ranks"):
        VirtualRanks(module(), 1)


def test_there_are_at_least_as_many_as_ranks():
    launch(too_few, 2)
