"""Where the host of a GPU would wait in a step: wherever a tensor's value is read. Listed, and nothing else is allowed.

A step queues its work on the device and runs ahead of it. To read a number (`.item()`, `if tensor:`, `.tolist()`,
`nonzero`, a mask as an index) is to wait until all that is queued is done, and on a mesh for all ranks that this one
waits for. On a CPU these calls are the same ones, so they are found here without a GPU.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dtcourse import launch, streams
from dtcourse.hybrid import HybridConfig, HybridTraining
from dtcourse.hybrid.config import AXES
from dtcourse.pipeline_parallel.refusals import Words
from dtcourse.tensor_parallel import cross_entropy
from tests.hybrid.layouts import GROUPED, MICRO_BATCHES, MIXTURE, TIED, batch, own_samples, start
from tests.pairs.layouts import sgd

COURSE = Path(__file__).resolve().parents[2] / "dtcourse"
DOOR = COURSE / "collectives" / "decisions.py"  # reads for others: what matters is who asks
# What reads values, of all that Python can call on a tensor...
METHODS = {
    "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "unique", "masked_select", "equal", "allclose",
    "is_nonzero", "bincount", "__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__",
}  # fmt: skip
# ... and of what runs below, also where compiled code calls it.
OPERATIONS = {
    "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "bincount",
}  # fmt: skip


def place(frame: FrameType | None) -> str:
    """The course's function from which it was called, and its file; or that it was a test's."""
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if path.is_relative_to(COURSE) and path != DOOR:
            return f"{path.relative_to(COURSE)}:{name}"
        if path.is_relative_to(COURSE.parent / "tests") and not name.startswith("__torch_"):
            return f"a test's {name}"
        frame = frame.f_back
    return "nobody's"


class Calls(TorchFunctionMode):
    """Counts what reads values, by place."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        to_host = name == "to" and "cpu" in [one for one in args[1:] if isinstance(one, str)]
        if name in METHODS or to_host or (name == "where" and len(args) == 1):
            self.found[place(sys._getframe(1))] += 1
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """The same, below autograd. A mask as an index is a nonzero."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.").removesuffix(".default")
        masks = name.startswith(("index.", "index_put", "_index_put")) and any(
            isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        # Unless it is told, it asks how long the result is.
        repeats = name.startswith("repeat_interleave.Tensor") and not (kwargs or {}).get(
            "output_size"
        )
        if name in OPERATIONS or masks or repeats:
            self.found[place(sys._getframe(1))] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Where the course asks whether a value can be read without waiting, the answer is no."""
    init = Words.__init__

    def later(self, group, where):
        init(self, group, where)
        self.at_once = False

    with (
        mock.patch.object(streams, "may_look", return_value=False),
        mock.patch.object(Words, "__init__", later),
    ):
        yield


def waits(config, cut):
    """By step, the places where this rank reads values: forward, backward, means, clipping, the optimizer's step."""
    training, found = start(config, cut), []
    optimizer = sgd(training.module)
    for number in range(3):
        tokens, targets = own_samples(training, *batch(config, number))
        here: Counter[str] = Counter()
        with as_on_a_gpu(), Calls(here), Operations(here):
            optimizer.zero_grad()
            training.step(tokens, targets)
            training.clip_grad_norm(0.3)
            optimizer.step()
        found.append(dict(here))
    return found


READS = [
    lambda x, mask: x[0].item(), lambda x, mask: bool(x[1] > 0), lambda x, mask: float(x[1]), lambda x, mask: int(x[1]),
    lambda x, mask: x.tolist(), lambda x, mask: x.nonzero(), lambda x, mask: torch.nonzero(x), lambda x, mask: x[mask],
    lambda x, mask: x.cpu(), lambda x, mask: x.numpy(), lambda x, mask: torch.equal(x, x),
    lambda x, mask: torch.where(mask), lambda x, mask: x.masked_select(mask), lambda x, mask: [7] * x[1].long(),
    lambda x, mask: x.unique(), lambda x, mask: x.repeat_interleave(mask.long()), lambda x, mask: 2.0 in x,
    lambda x, mask: x.__setitem__(mask, 1.0), lambda x, mask: x.long().bincount(), lambda x, mask: x.to("cpu"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(READS)))
def test_what_is_looked_for_is_found(number):
    found: Counter[str] = Counter()
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    with Calls(found), Operations(found):
        READS[number](x, mask)
    assert found


def test_what_does_not_wait_is_not():
    found: Counter[str] = Counter()
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    with Calls(found), Operations(found):
        x.add_(1.0).sum().sqrt().mul(x).clamp(max=1.0).masked_fill(mask, 0.0)
        assert x.shape == (len(x),) == (4,)
        _ = x[1:3], x[torch.tensor([0, 2])], torch.where(mask, x, x), x.to(torch.double)
        x.repeat_interleave(mask.long(), output_size=2)
    assert not found


HEADERS = (
    "pipeline_parallel/headers.py:read"  # shapes and dtypes of what a stage gets, in the first step
)
REFUSALS = "pipeline_parallel/refusals.py:look_back"  # whether another rank has refused the batch
# How many rows each rank sends to each expert, which no rank knows before; only `dispatch` and `exchange` take them
# from the device, and the others read what is on the host by then.
SIZES = {
    f"expert_parallel/exchange.py:{name}" for name in ("dispatch", "exchange", "permute", "<genexpr>")
} | {"grouped_mm.py:grouped_mm"}  # fmt: skip
# Whether ranks of one part of the data have the same samples, asked before the first step alone.
SAME = {f"hybrid/same_batch.py:{name}" for name in ("check_same_batch", "<dictcomp>")} | {
    "parameters/agreement.py:raise_on_all_ranks"
}
# A seed, drawn on the host by the CPU's generator.
SEEDS = {"tensor_parallel/random_state.py:different_on_each_rank"}

LAYOUTS = [
    (GROUPED, {"pp": 2, "dp_shard": 2, "reduce_once": True}),
    (GROUPED, {"cp": 2, "dp_shard": 2}),
    (TIED, {"pp": 2, "tp": 2}),
    (TIED, {"dp_replicate": 2, "tp": 2, "sequence": True}),
    (TIED, {"cp": 2, "tp": 2, "context": "ulysses"}),
    (MIXTURE, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}),
    (MIXTURE, {"pp": 2, "cp": 2, "ep": 2}),
]


@pytest.mark.parametrize(
    ("config", "layout"), LAYOUTS, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_a_step_waits_for_sizes_of_splits_and_for_nothing_else(config, layout):
    cut = HybridConfig(**layout, micro_batches=MICRO_BATCHES)
    allowed = SEEDS | (SIZES if config is MIXTURE else set())
    steps = launch(waits, cut.ranks, config, cut)
    for first, *later in steps:
        # On a GPU a rank looks at the first message of each rank that sends to it, and at the end at all others.
        for found in (first, *later):
            assert found.pop(REFUSALS, 0) <= 2 * (cut.pp > 1)
        assert {*first} <= allowed | {HEADERS} | SAME
        for found in later:
            assert {*found} <= allowed
    if cut.ep > 1:
        assert all("expert_parallel/exchange.py:exchange" in found for _, found, _ in steps)
    if cut.pp > 1:
        assert any(HEADERS in first for first, _, _ in steps)


def test_axes_are_all_there():
    assert {name for _, layout in LAYOUTS for name in layout} >= {*AXES, "ep"}


def looks_at_the_loss():
    """A step that returns a float."""

    def step(self, tokens, targets):
        loss = hybrid_step(self, tokens, targets)
        return None if loss is None else float(loss)

    hybrid_step = HybridTraining.step
    with mock.patch.object(HybridTraining, "step", step):
        return waits(TIED, HybridConfig(dp_replicate=2, micro_batches=MICRO_BATCHES))


def looks_at_targets():
    """What the loss does on a CPU, on a GPU."""
    with mock.patch(f"{__name__}.as_on_a_gpu", contextlib.nullcontext):
        return waits(TIED, HybridConfig(tp=2, micro_batches=MICRO_BATCHES))


@pytest.mark.parametrize(
    ("mutant", "where"),
    [(looks_at_the_loss, "a test's step"), (looks_at_targets, "tensor_parallel/cross_entropy.py")],
)
def test_a_step_that_looks_is_seen(mutant, where):
    for steps in launch(mutant, 2):
        assert all(any(place.startswith(where) for place in found) for found in steps)


def wrong_target():
    with as_on_a_gpu(), pytest.raises(RuntimeError, match="a target is none of the 6 classes"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([1, 6]))


def test_a_wrong_target_is_asserted_on_the_device():
    launch(wrong_target, 2)
