"""Out of memory: recognised, explained, emulated, and survived with the gradients of the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.launch import RankFailure
from dtcourse.memory import MemoryLimit, explain, is_out_of_memory, train_step_with_halving
from dtcourse.verify import CASES, compare, gradients_of

MIB = 2**20
FROM_A_GPU = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which {free} is free. "
    "Including non-PyTorch memory, this process has 77.10 GiB memory in use. Of the allocated memory 70.00 GiB is "
    "allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated."
)


def real_error():
    """What this machine's CPU says where 4 PiB are asked for."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52, dtype=torch.uint8)
    return caught.value


def test_what_an_out_of_memory_error_is():
    assert is_out_of_memory(real_error())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(ValueError, match="no out-of-memory error: KeyError"):
        explain(KeyError("a"))


def test_it_is_explained_with_its_numbers():
    text = explain(real_error())
    assert "The allocation that failed was 4096 TiB." in text and "micro-batch" in text
    full = explain(torch.OutOfMemoryError(FROM_A_GPU.format(free="1.25 GiB", idle="300.00 MiB")))
    assert "was 2 GiB of a device that has 79.15 GiB; 1.25 GiB were free" in full
    assert "fragment" not in full
    holes = explain(torch.OutOfMemoryError(FROM_A_GPU.format(free="1.25 GiB", idle="6.00 GiB")))
    assert "PyTorch held 6 GiB that no tensor used" in holes and "expandable_segments" in holes
    pieces = explain(torch.OutOfMemoryError(FROM_A_GPU.format(free="2.50 GiB", idle="1.00 MiB")))
    assert "enough in sum, but not in one piece" in pieces


def test_the_limit_counts_to_the_byte():
    """A model of 4 * 1024 bytes, then tensors of 1024 bytes, one of which is freed."""
    model = nn.Linear(32, 32, bias=False)

    def work():
        a = torch.zeros(256)
        b = torch.zeros(256)
        del a
        c = b + 1
        return b, c

    with MemoryLimit(6 * 1024, model) as limit:
        work()
    assert limit.peak_live == 6 * 1024
    with pytest.raises(torch.OutOfMemoryError) as caught:
        with MemoryLimit(6 * 1024 - 1, model):
            work()
    assert "Tried to allocate 1024 bytes for aten::zeros" in str(caught.value)
    assert "capacity of 6143 bytes, of which 1023 bytes is free" in str(caught.value)
    assert "was 1 KiB of a device that has 5.999 KiB; 1023 bytes were free" in explain(caught.value)
    with pytest.raises(ValueError, match="bytes above 0; got 0"):
        MemoryLimit(0)


def test_after_an_error_the_memory_is_there_again():
    with MemoryLimit(4096) as limit:
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(2000)
        torch.zeros(1000)
    assert limit.live == 0


def wide():
    """Activations outweigh parameters: 40 KiB a sample at its widest, 15 KiB of parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), *[Widen() for _ in range(3)], nn.Linear(3, 3))


class Widen(nn.Module):
    """(B, 3) -> (B, 3), by way of (B, 3, 1000)."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 1000))

    def forward(self, x):
        return torch.tanh(x[..., None] * self.scale).mean(-1)


def halved(limit, samples=16, micro_batch=None, seed=0):
    """One step under a limit of so many bytes: gradients of the step, and what the step says."""
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = CASES["mlp"].batch(samples, seed)
    with MemoryLimit(limit, model, inputs=[inputs, targets]):
        step = train_step_with_halving(
            model, CASES["mlp"].loss, optimizer, inputs, targets, micro_batch=micro_batch
        )
    return model, step


def whole(samples=16, seed=0):
    model = wide()
    inputs, targets = CASES["mlp"].batch(samples, seed)
    loss = CASES["mlp"].loss(model(inputs), targets)
    loss.backward()
    return gradients_of(model), loss.item()


@settings(max_examples=10)
@given(st.integers(1, 23), st.integers(1, 30), st.sampled_from([200, 400, 900]))
def test_gradients_are_those_of_the_whole_batch(samples, micro_batch, limit_kib):
    """Also where the last micro-batch is smaller, and whatever it took to fit."""
    expected, loss = whole(samples)
    model, step = halved(limit_kib * 1024, samples, micro_batch)
    compare(gradients_of(model), expected)
    assert step.loss == pytest.approx(loss, rel=1e-5)
    assert step.micro_batch == max(1, min(micro_batch, samples) // 2 ** (step.attempts - 1))


def test_it_halves_until_it_fits():
    _, fits = halved(100 * MIB)
    assert (fits.micro_batch, fits.attempts) == (16, 1)
    _, step = halved(400 * 1024)
    assert (step.micro_batch, step.attempts) == (4, 3)
    _, known = halved(400 * 1024, micro_batch=step.micro_batch)
    assert known.attempts == 1, "what a step has learnt, the next one can use"


def test_one_sample_too_much():
    model = wide()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = CASES["mlp"].batch(4, 0)
    with pytest.raises(torch.OutOfMemoryError, match="one sample at a time is still too much: Emu"):
        with MemoryLimit(30 * 1024, model):
            train_step_with_halving(model, CASES["mlp"].loss, optimizer, inputs, targets)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_statistics_and_random_state_are_as_if_the_failed_attempt_had_not_been():
    def run(limit, micro_batch):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(6, 400), nn.BatchNorm1d(400), nn.Dropout(), nn.Linear(400, 3)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = CASES["mlp"].batch(16, 0)
        with MemoryLimit(limit, model):
            step = train_step_with_halving(
                model, CASES["mlp"].loss, optimizer, inputs, targets, micro_batch=micro_batch
            )
        return step, model.state_dict(), torch.rand(3)

    at_once, retried = run(MIB, 4), run(80 * 1024, 16)
    assert retried[0].attempts > 1 and retried[0].micro_batch == 4
    for name, value in at_once[1].items():
        assert torch.equal(value, retried[1][name]), name
    assert torch.equal(at_once[2], retried[2])


def test_other_errors_are_not_swallowed():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = CASES["mlp"].batch(4, 0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        train_step_with_halving(model, CASES["mlp"].loss, optimizer, inputs[:, :5], targets)
    assert not is_out_of_memory(caught.value)
    for bad in (
        {"targets": targets[:3]},
        {"inputs": inputs[:0], "targets": targets[:0]},
        {"micro_batch": 0},
    ):
        arguments = {"inputs": inputs, "targets": targets} | bad
        with pytest.raises(ValueError, match="the same samples, at least one"):
            train_step_with_halving(model, CASES["mlp"].loss, optimizer, **arguments)


# --- over ranks ---------------------------------------------------------------------------------------------------


def steps_over_ranks(limits, wrap, own_batches=False):
    """Two steps of a rank with limits[rank] bytes: what each step says, and the gradients of the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = wide()
    wrapped = DistributedDataParallel(model) if wrap else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs, targets = (t.chunk(size)[rank] for t in CASES["mlp"].batch(16 * size, 0))
    if own_batches:  # rank r has 4 r + 4 samples
        inputs, targets = (t[: 4 * rank + 4] for t in (inputs, targets))
    seen, micro_batch = [], None
    with MemoryLimit(limits[rank], model):
        for _ in range(2):
            step = train_step_with_halving(
                wrapped, CASES["mlp"].loss, optimizer, inputs, targets,
                micro_batch=micro_batch, group=None if wrap else dist.group.WORLD,
            )  # fmt: skip
            micro_batch = step.micro_batch
            seen.append((step.micro_batch, step.attempts))
    return seen, gradients_of(model)


def everything():
    """All over-rank cases in one launch."""
    low, high = 400 * 1024, 100 * MIB
    return {
        "plain": steps_over_ranks([high, low], False),
        "ddp": steps_over_ranks([low, high], True),
        "uneven": steps_over_ranks([high, high], False, own_batches=True),
    }


def test_all_ranks_agree_and_average():
    """One rank has little memory: both take its micro-batch, and gradients are those of the whole batch."""
    model = wide()
    inputs, targets = CASES["mlp"].batch(32, 0)
    CASES["mlp"].loss(model(inputs), targets).backward()
    runs = list(launch(everything, 2))
    for results in runs:
        for name in ("plain", "ddp"):
            seen, gradients = results[name]
            assert seen == [(4, 3), (4, 1)]
            compare(gradients, gradients_of(model), what=name)
    uneven = [results["uneven"][0] for results in runs]
    assert uneven == [[(4, 1), (4, 1)], [(8, 1), (8, 1)]], "nobody had trouble, so nobody halves"


def test_every_rank_is_told_that_one_sample_is_too_much():
    def step():
        try:
            steps_over_ranks([100 * MIB, 30 * 1024], False)
        except torch.OutOfMemoryError as error:
            return str(error)

    told = launch(step, 2)
    assert told[0].endswith("another rank of the group ran out of memory")
    assert "Emulated device out of memory" in told[1]


def test_a_rank_that_fails_for_another_reason_is_named():
    def step():
        model = wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = CASES["mlp"].batch(4, 0)
        width = 6 - dist.get_rank()
        train_step_with_halving(
            model, CASES["mlp"].loss, optimizer, inputs[:, :width], targets, group=dist.group.WORLD
        )

    with pytest.raises(RankFailure, match=r"rank 1.*shapes cannot be multiplied"):
        launch(step, 2)


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_a_real_gpu_runs_out_and_survives():
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        where = torch.device("cuda")
        model = nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 3)).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = (
            torch.randn(2**20, 64, device=where),
            torch.zeros(2**20, dtype=torch.long, device=where),
        )
        step = train_step_with_halving(model, CASES["mlp"].loss, optimizer, inputs, targets)
        assert step.attempts > 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
