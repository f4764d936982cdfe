"""nn.DataParallel by hand: equal to one process, and its costs counted."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dtcourse import device
from dtcourse.data_parallel import DataParallel
from dtcourse.verify import CASES, NotEqual, compare, gradients_of, one_process


def train(case, replicas, steps=3, wrap=DataParallel, **keywords):
    """Gradients of a few steps of SGD, step by step, as verify.one_process makes them."""
    model = case.build(0)
    wrapped = wrap(model, replicas, **keywords)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    gradients = []
    for step in range(steps):
        x, y = case.batch(24, step)
        optimizer.zero_grad()
        case.loss(wrapped(x), y).backward()
        gradients.append(gradients_of(model))
        optimizer.step()
    return gradients


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("case", list(CASES))
def test_gradients_equal_one_process(case, replicas):
    truth = one_process(CASES[case])
    for got, expected in zip(train(CASES[case], ["cpu"] * replicas), truth.gradients, strict=True):
        compare(got, expected)


def test_a_replica_that_is_left_out_is_seen(monkeypatch):
    """The comparison above fails where it should: twins whose gradients go nowhere."""
    from dtcourse.data_parallel import threads

    def lost(tensor, device, number, moved, what):
        return tensor if number == 0 or what != "parameters" else tensor.detach().clone()

    monkeypatch.setattr(threads, "_move", lost)
    with pytest.raises(NotEqual):
        compare(train(CASES["mlp"], ["cpu"] * 2)[0], one_process(CASES["mlp"]).gradients[0])


def test_bytes_moved_are_the_formula():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    wrapped = DataParallel(model, ["cpu"] * 4)
    for _ in range(2):  # the same in every step: nothing stays
        wrapped(torch.ones(8, 6)).sum().backward()
        parameters = sum(p.nbytes for p in model.parameters())
        trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        assert wrapped.moved == {
            "parameters": 3 * parameters,
            "gradients": 3 * trained,
            "buffers": 3 * sum(b.nbytes for b in model.buffers()),
            "inputs": 6 * 6 * 4,  # 6 of 8 samples live elsewhere
            "outputs": 6 * 3 * 4,
            "output gradients": 6 * 3 * 4,
        }


def test_the_threads_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=60)

    class Meets(nn.Linear):
        def forward(self, x):
            meeting.wait()
            return super().forward(x)

    assert DataParallel(Meets(2, 2), ["cpu"] * 3)(torch.ones(6, 2)).shape == (6, 2)


def test_fewer_samples_than_replicas():
    model = nn.Linear(2, 2)
    wrapped = DataParallel(model, ["cpu"] * 4)
    assert torch.equal(wrapped(torch.ones(2, 2)), model(torch.ones(2, 2)))
    assert wrapped.moved["parameters"] == sum(p.nbytes for p in model.parameters())  # one twin


def test_nests_of_arguments_and_results():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, pair, scale, *, more):
            x, y = pair
            return {"sum": self.layer(x + y) * scale + more["z"], "rest": (x, y.mean())}

    model, (x, y, z) = Nested(), torch.randn(3, 8, 3)
    out = DataParallel(model, ["cpu"] * 2)((x, y), 2.0, more={"z": z})
    assert torch.allclose(out["sum"], model((x, y), 2.0, more={"z": z})["sum"])
    assert torch.equal(out["rest"][0], x)
    assert torch.allclose(out["rest"][1], y.view(2, -1).mean(1))  # a number of each replica


def test_running_statistics_are_those_of_the_first_replica():
    torch.manual_seed(0)
    x = torch.randn(8, 3)
    wrapped, plain = DataParallel(nn.BatchNorm1d(3), ["cpu"] * 2), nn.BatchNorm1d(3)
    wrapped(x)
    plain(x[:4])
    assert torch.equal(wrapped.module.running_mean, plain.running_mean)
    assert int(wrapped.module.num_batches_tracked) == 1


def test_a_module_with_lists_of_its_parameters():
    """An LSTM keeps its weights in a list as well; the twin has its own, and the original keeps its."""
    torch.manual_seed(0)
    plain, x = nn.LSTM(3, 4, batch_first=True), torch.randn(4, 5, 3)
    wrapped = DataParallel(plain, ["cpu"] * 2)
    got = torch.autograd.grad(wrapped(x)[0].square().sum(), plain.weight_hh_l0)
    right = torch.autograd.grad(plain(x)[0].square().sum(), plain.weight_hh_l0)
    assert torch.allclose(got[0], right[0], atol=1e-5)
    assert all(p is q for p, q in zip(plain._flat_weights, plain.parameters(), strict=True))


def test_no_grad_and_autocast_reach_the_threads():
    wrapped = DataParallel(nn.Linear(2, 2), ["cpu"] * 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = wrapped(torch.ones(4, 2))
    assert not out.requires_grad and out.dtype == torch.bfloat16


def test_an_error_keeps_its_type_and_names_the_replica():
    class Picky(nn.Linear):
        def forward(self, x):
            if x.min() < 0:
                raise KeyError("negative")
            return super().forward(x)

    with pytest.raises(KeyError, match="negative") as caught:
        DataParallel(Picky(2, 2), ["cpu"] * 2)(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    assert caught.value.__notes__ == ["in replica 1 of 2 (counted from 0), on cpu"]


def test_what_it_refuses():
    with pytest.raises(ValueError, match="at least one device"):
        DataParallel(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="weight is on cpu, and the first device is meta"):
        DataParallel(nn.Linear(2, 2), ["meta"])
    with pytest.raises(ValueError, match="lists, tuples and dicts of them; got str"):
        DataParallel(Says(), ["cpu"])(torch.ones(2, 2))


class Says(nn.Module):
    def forward(self, x):
        return "done"


@pytest.mark.gpu
def test_on_gpus_it_is_pytorchs_own():
    devices = [device.for_rank(i) for i in range(2)]  # one GPU is taken twice

    def step(wrap, devices):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(devices[0])
        wrap(model, devices)(torch.ones(8, 6, device=devices[0])).square().mean().backward()
        return gradients_of(model)

    mine = step(DataParallel, devices)
    compare(mine, step(lambda model, _: model, devices))
    if device.count() > 1:
        compare(mine, step(lambda m, d: nn.DataParallel(m, [x.index for x in d]), devices))
