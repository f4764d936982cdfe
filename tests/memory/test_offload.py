"""Activation offload: the same gradients, the bytes that formulas say, memory really given back,
fetched ahead of use."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from torch import nn

from dtcourse import device, events
from dtcourse.memory import checkpoint, offload_activations
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.verify import compare, gradients_of

WIDTH, BATCH, LAYERS = 64, 32, 12
ONE = BATCH * WIDTH * 4  # bytes of one activation


def model():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def step(net, x, offload=None):
    """Loss and gradients of one step."""
    net.zero_grad()
    if offload is None:
        loss = net(x).square().mean()
    else:
        with offload:
            loss = net(x).square().mean()
    loss.backward()
    return {**gradients_of(net), "loss": loss.detach()}


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_gradients_are_the_same_bit_for_bit(prefetch):
    x = torch.randn(BATCH, WIDTH)
    compare(step(model(), x, offload_activations(prefetch=prefetch)), step(model(), x), tolerance=0)


def test_every_storage_goes_out_once_and_comes_back_once():
    """Saved: the batch by the first linear, each tanh's output by tanh, by the next linear,
    by the square at the end."""
    offload = offload_activations()
    step(model(), torch.randn(BATCH, WIDTH), offload)
    assert offload.bytes == offload.fetched == (1 + LAYERS) * ONE


def test_small_ones_and_parameters_stay():
    net, x = model(), torch.randn(BATCH, WIDTH)
    offload = offload_activations(minimum_bytes=ONE + 1)
    step(net, x, offload)
    assert offload.bytes == 0, "each weight is larger than an activation, and all stayed"


def live_after_forward(context, net, x):
    with MemoryTracker(net, inputs=[x]) as tracker:
        with context:
            loss = net(x).square().mean()
        if isinstance(context, offload_activations):
            context.synchronize()
        between = int(tracker.history.total()[-1])
        loss.backward()
    return between, int(tracker.peak.bytes)


def test_memory_is_given_back_between_forward_and_backward():
    """Without: all activations live. With: parameters, batch and loss; the peak is far lower too."""
    x = torch.randn(32 * BATCH, WIDTH)
    net = model()
    there_anyway = sum(p.nbytes for p in net.parameters()) + x.nbytes
    plain, plain_peak = live_after_forward(torch.enable_grad(), net, x)
    net.zero_grad()
    offloaded, peak = live_after_forward(offload_activations(pending=1), net, x)
    assert plain == there_anyway + LAYERS * 32 * ONE + 4
    assert offloaded == there_anyway + 4
    assert plain_peak - peak > (LAYERS - 6) * 32 * ONE, "six or fewer are there at a time"


def test_views_strides_and_types_come_back_as_they_were():
    """Transposed, expanded and sliced tensors, of several types, whose storage is shared."""

    def function(w):
        base = (w.sin() * 2).reshape(40, 40)
        mask = base > 0
        return (
            (base.t() @ base[:, ::2]).sum()
            + (base[3:7].exp() * base.t()[3:7]).sum()
            + base[mask].square().sum()
        )

    w = torch.linspace(-1, 1, 1600).requires_grad_()
    (expected,) = torch.autograd.grad(function(w), w)
    with offload_activations(minimum_bytes=1):
        value = function(w)
    (got,) = torch.autograd.grad(value, w)
    assert torch.equal(got, expected)


def test_two_backwards_and_a_part_of_one():
    x, w = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True)
    with offload_activations() as offload:
        y = (x @ w).tanh()
        loss, other = (y @ w.t()).square().sum(), y.exp().sum()
    expected = torch.autograd.grad(((x @ w).tanh() @ w.t()).square().sum(), w)
    for _ in range(2):
        got = torch.autograd.grad(loss, w, retain_graph=True)
        assert torch.equal(got[0], expected[0])
    before = offload.fetched
    torch.autograd.grad(other, y)
    assert offload.fetched <= before + 2 * ONE, "only what was needed, and the one before"


def test_changed_in_place_after_it_was_sent():
    """A storage that changed is another one: it is sent again."""
    buffer = torch.ones(ONE // 4)
    w = torch.ones(ONE // 4, requires_grad=True)
    with offload_activations(pending=1) as offload:
        first = (w * buffer).sum()
        offload.synchronize()
        buffer.mul_(3)
        second = (w * buffer).sum()
    (gradient,) = torch.autograd.grad(first + second, w)
    assert offload.bytes == 2 * ONE and torch.equal(gradient, torch.full_like(w, 4.0))


def test_with_checkpointing_only_inputs_of_regions_travel():
    config = TransformerConfig(
        vocab=17, d_model=32, n_layers=3, n_heads=2, max_length=16, dropout=0.1
    )
    torch.manual_seed(0)
    net = Transformer(config)
    tokens_BS = torch.randint(17, (4, 16))

    def gradients(context, call):
        net.zero_grad()
        torch.manual_seed(1)
        forwards = [block.forward for block in net.blocks]
        for block, forward in zip(net.blocks, forwards, strict=True):
            block.forward = lambda x, forward=forward: call(forward, x)
        with context:
            loss = net(tokens_BS).square().mean()
        loss.backward()
        for block in net.blocks:
            del block.forward
        return gradients_of(net)

    expected = gradients(torch.enable_grad(), lambda f, x: f(x))
    alone, both = offload_activations(), offload_activations()
    compare(gradients(alone, lambda f, x: f(x)), expected, tolerance=0.0)
    compare(gradients(both, checkpoint), expected, tolerance=0.0)
    assert both.bytes < alone.bytes / 4


def test_backward_fetches_ahead(monkeypatch):
    """While storage n is waited for, the copy of n - 1 has been started already."""
    log = []

    class Logged(device.SideStream):
        def run(self, work, uses=(), finished=None):
            number = len([entry for entry in log if entry[0] == "start"])
            log.append(("start", number))
            wait = super().run(work, uses, finished)

            def logged_wait():
                log.append(("wait", number))
                wait()

            return logged_wait

    monkeypatch.setattr(device, "SideStream", Logged)
    offload = offload_activations(prefetch=1, pending=100)
    step(model(), torch.randn(BATCH, WIDTH), offload)
    out = 1 + LAYERS
    assert log[:out] == [("start", n) for n in range(out)], "forward waits for nothing"
    fetches = [entry for entry in log if entry[1] >= out]
    # The last one: start it, start the one before, and only then wait for the first.
    assert fetches[:5] == [
        ("start", out),
        ("start", out + 1),
        ("wait", out),
        ("start", out + 2),
        ("wait", out + 1),
    ]


def test_the_timeline_shows_what_went_when():
    events.start_recording(0)
    try:
        offload = offload_activations()
        step(model(), torch.randn(BATCH, WIDTH), offload)
        offload.synchronize()
    finally:
        seen = events.Timeline(events.stop_recording())
    out, back = seen.of(name="offload", kind="memory"), seen.of(name="fetch", lane="side stream")
    numbers = list(range(1 + LAYERS))
    assert [e.detail["number"] for e in out] == numbers
    assert [e.detail["number"] for e in back] == numbers[::-1]
    assert {e.bytes for e in seen} == {ONE} and all(e.end >= e.start for e in seen)
    assert all(a.end <= b.start for a, b in zip(seen, list(seen)[1:], strict=False)), "one by one"


def test_the_file_is_used_again_and_leaves_nothing(tmp_path):
    net, x = model(), torch.randn(BATCH, WIDTH)
    offload = offload_activations(folder=tmp_path)
    for _ in range(3):
        step(net, x, offload)
    assert os.fstat(offload._file.file.fileno()).st_size == (1 + LAYERS) * ONE
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_not_a_wrong_gradient(monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        step(model(), torch.randn(BATCH, WIDTH), offload_activations(pending=100))


def test_numbers_that_make_no_sense():
    with pytest.raises(ValueError, match="got 0 and 0"):
        offload_activations(prefetch=0, pending=0)


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_a_gpu_to_pinned_memory_beside_the_computation():
    where = torch.device("cuda")
    net, x = model().to(where), torch.randn(BATCH, WIDTH, device=where)
    expected = step(net, x)
    device.synchronize()
    events.start_recording(0)
    try:
        offload = offload_activations()
        got = step(net, x, offload)
        offload.synchronize()
    finally:
        seen = events.stop_recording()
    compare(got, expected, tolerance=0.0)
    assert offload.bytes == offload.fetched == (1 + LAYERS) * ONE
    assert len(seen) == 2 * (1 + LAYERS)
