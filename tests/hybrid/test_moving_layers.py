"""A layer arrives as it was sent: dtypes, shapes, marks; what cannot be sent is said before anything has moved."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import launch
from dtcourse.hybrid.moving import MovingStages
from dtcourse.pipeline_parallel import one_f_one_b

WIDTH, LAYERS = 4, 4
HALVES, LATE = [range(2), range(2, 4)], [range(1), range(1, 4)]


class Growing(nn.Module):
    """A layer with a list of what it has seen, and a buffer that is there from the first forward on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("last", None)
        self.register_buffer("first", torch.ones(2))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.detach().mean().view(1).float()])
        self.last, self.first = x.detach().sum(), None
        return x + torch.tanh(self.linear(x))


def made(layers=None):
    layers = layers or [Growing() for _ in range(LAYERS)]
    return MovingStages(layers, one_f_one_b(2, 2), F.cross_entropy, ranges=HALVES)


def adam(moving):
    return torch.optim.Adam(moving.module.parameters(), 0.01)


def step(moving, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, WIDTH, generator=generator).to(dtype)
    moving.step(x, torch.randint(WIDTH, (4,), generator=generator))


def moved_there_and_back():
    """What rank 1 has of layer 1 while it is there, and rank 0 when it is back."""
    torch.manual_seed(0)
    moving = made()
    mine = moving.layers[1]
    for parameter in mine.parameters():
        parameter.no_decay = True
    optimizer = adam(moving)
    step(moving)
    optimizer.step()
    moving.module.to(torch.float64)  # after the layers were spread; states stay as they are
    before = described(mine, optimizer)
    moving.move(LATE, optimizer)
    there = described(mine, optimizer)
    moving.move(HALVES, optimizer)
    return before, there, described(mine, optimizer)


def described(layer, optimizer):
    parameters = {
        name: (
            p.dtype,
            p.is_meta,
            getattr(p, "no_decay", False),
            sorted(optimizer.state.get(p, {})),
        )
        for name, p in layer.named_parameters()
    }
    buffers = {n: one if one is None else (one.dtype, one.shape) for n, one in _buffers(layer)}
    return parameters, buffers


def _buffers(layer):
    return [(name, getattr(layer, name)) for name in ("seen", "last", "first")]


class Unpicklable(nn.Linear):
    def get_extra_state(self):
        return lambda: None

    def set_extra_state(self, state):
        pass


def mistakes():
    rank, said = dist.get_rank(), {}

    def tried(name, act):
        try:
            act()
            said[name] = "nothing"
        except Exception as error:
            said[name] = f"{error}"

    moving = made()
    optimizer = adam(moving)
    parameter = moving.layers[1].linear.weight
    hook = None if rank else parameter.register_hook(lambda gradient: gradient)
    tried("hook", lambda: moving.move(LATE, optimizer))
    if hook:
        hook.remove()
    hooked = [Growing() for _ in range(LAYERS)]
    hooked[3].linear.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    tried("hook at first", lambda: made(hooked))
    unpicklable = made([Unpicklable(WIDTH, WIDTH) for _ in range(LAYERS)])
    tried("state", lambda: unpicklable.move(LATE, adam(unpicklable)))
    step(unpicklable)  # nothing has moved
    moving.move(LATE, optimizer)  # without the hook it goes
    said["then"] = str([len(one) for one in moving.ranges])
    return said


def everything():
    return moved_there_and_back(), mistakes()


@pytest.fixture(scope="module")
def run():
    return launch(everything, 2)


def test_dtypes_shapes_marks_and_states_travel(run):
    (before, _, back), (_, there, gone) = run[0][0], run[1][0]
    assert there == back == before
    parameters, buffers = there
    assert set(parameters) == {"linear.weight", "linear.bias"}
    states = ["exp_avg", "exp_avg_sq", "step"]
    assert set(map(str, parameters.values())) == {str((torch.float64, False, True, states))}
    assert buffers["seen"] == (torch.float64, torch.Size([2])) and buffers["first"] is None
    assert buffers["last"] == (torch.float64, torch.Size([]))
    assert all(is_meta for _, is_meta, _, _ in gone[0].values())


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("hook", "has a hook on its gradient"),
        ("hook at first", "3.linear.bias has a hook on its gradient"),
        ("state", "local object"),
        ("then", "[1, 3]"),
    ],
)
def test_what_cannot_be_sent_is_said_on_all_ranks_and_nothing_has_moved(run, what, words):
    for _, said in run:
        assert words in said[what], said[what]
