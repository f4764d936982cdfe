"""The measurements: categories, shared storages, the curve, the peak;
held against PyTorch's own tracker and allocator."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtcourse import device, launch
from dtcourse.models import MLP, Transformer, TransformerConfig, parameter_count
from dtcourse.profiling.memory import SavedTensors, held, storage_bytes
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.sharding import fully_shard

CONFIG = TransformerConfig(vocab=64, d_model=32, n_layers=2, n_heads=2, max_length=32)


def batch(on: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 64, (2, 33), generator=torch.Generator().manual_seed(0)).to(on)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def test_held_counts_each_category_and_a_tied_weight_once():
    model = Transformer(CONFIG)
    optimizer = torch.optim.Adam(model.parameters())
    psi = parameter_count(model)
    assert held(model, optimizer) == {
        "parameters": 4 * psi, "gradients": 0, "optimizer states": 0, "buffers": 0,
    }  # fmt: skip
    model.loss(*batch()).backward()
    optimizer.step()
    found = held(model, optimizer)
    tensors = len(list(model.parameters()))
    assert found["parameters"] == found["gradients"] == 4 * psi
    assert found["optimizer states"] == 8 * psi + 4 * tensors  # Adam's step count, a tensor each
    untied = Transformer(TransformerConfig(64, 32, 2, 2, max_length=32, tied=False))
    assert held(untied)["parameters"] == 4 * (psi + 64 * 32)


def test_held_sees_buffers_and_master_weights():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).bfloat16()
    master = [p.detach().float() for p in model.parameters()]
    found = held(model, torch.optim.SGD(master))
    numbers = 8 * 8 + 8 + 8 + 8
    assert found["parameters"] == 2 * numbers
    assert found["optimizer states"] == 4 * numbers
    assert found["buffers"] == 2 * (8 + 8) + 8  # mean and variance in bfloat16, the int64 count


def test_storage_bytes_counts_what_is_shared_once():
    x = torch.zeros(100)
    assert storage_bytes([x, x.view(10, 10), x[:5]]) == 400
    assert storage_bytes([x, x.clone(), None]) == 800


def test_a_dtensor_counts_this_ranks_part():
    whole, part = torch.zeros(8), torch.zeros(2)
    whole.to_local = lambda: part  # a DTensor's method; one needs a process group to be made
    assert storage_bytes([whole]) == part.nbytes


def test_saved_tensors_count_a_shared_input_once():
    x = torch.randn(16, 32, requires_grad=True)
    a, b = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=False)
    model = nn.ModuleList([a, b])
    with SavedTensors(model) as saved:
        h = x.exp()  # saved by exp itself and by both layers
        loss = (a(h) + b(h)).sum()
    assert saved.bytes == 16 * 32 * 4
    assert [row.times for row in saved.rows] == [3]
    loss.backward()  # and the backward pass works as always
    assert x.grad is not None


def test_what_is_packed_is_handed_back_and_its_storage_counts_once():
    known, x = torch.zeros(5), torch.zeros(4, 4)
    saved = SavedTensors(inputs=[known])
    with saved:
        for tensor in (x, x.t(), x[0], known):
            assert saved.pack(tensor) is tensor
    assert saved.bytes == x.nbytes
    assert [row.times for row in saved.rows] == [3]


def test_saved_tensors_let_go_when_the_block_ends():
    x = torch.randn(1000, requires_grad=True)
    with MemoryTracker() as tracker:
        with SavedTensors() as saved:
            loss = x.exp().sigmoid().sum()
        loss.backward()
        del loss
        gc.collect()
    assert saved.bytes == 2 * 4000
    assert not [a for a in tracker.history.allocations if a.died is None and a.phase == "forward"]


def test_the_curve_ends_where_held_says_and_every_byte_has_a_category():
    model, (x, y) = Transformer(CONFIG), batch()
    optimizer = torch.optim.Adam(model.parameters())
    with MemoryTracker(model, optimizer, [x, y]) as tracker:
        loss = model.loss(x, y)
        loss.backward()
        optimizer.step()
        del loss
    last = {category: int(values[-1]) for category, values in tracker.history.curve().items()}
    inputs = x.nbytes + y.nbytes
    assert last == held(model, optimizer) | {"activations": 0, "other": inputs}
    assert int(tracker.history.total()[-1]) == sum(last.values())
    phases = [tracker.history.allocations[n].phase for _, n, _ in tracker.history.events]
    assert [p for p in dict.fromkeys(phases) if p != "before"] == [
        "forward", "backward", "optimizer",
    ]  # fmt: skip


def test_activations_by_birth_and_death_are_those_that_the_hooks_saw():
    model, (x, y) = Transformer(CONFIG), batch()
    with SavedTensors(model, [x, y]) as saved:
        model.loss(x, y)
    with MemoryTracker(model, inputs=[x, y]) as tracker:
        model.loss(x, y).backward()
    scalars = 2 * 4  # the loss itself and the 1 that its gradient starts from: alive, and not saved
    assert tracker.activation_bytes == saved.bytes + scalars


def test_the_peak_names_its_operator_and_module_and_what_was_alive():
    model = nn.Sequential(nn.Linear(4, 1000, bias=False), nn.Linear(1000, 4, bias=False))
    x = torch.randn(64, 4)
    with torch.no_grad(), MemoryTracker(model) as tracker:
        model(x)
    peak = tracker.peak
    weights = 2 * 4 * 1000 * 4
    assert peak.bytes == weights + x.nbytes + 64 * 1000 * 4 + 64 * 4 * 4
    assert (peak.op, peak.module, peak.phase) == ("mm", "1", "forward")
    assert peak.alive[0].bytes == 64 * 1000 * 4
    assert peak.alive[0].module == "0"
    assert sum(a.bytes for a in peak.alive) == peak.bytes == sum(peak.by_category.values())
    assert peak.by_category["activations"] == 0  # no backward pass came


def test_a_checkpoint_hides_its_tensors_from_the_hooks_and_not_from_the_tracker():
    model = MLP((256, 256, 256, 256, 10))
    x = torch.randn(512, 256)

    def checkpointed() -> torch.Tensor:
        return checkpoint(model, x, use_reentrant=False, preserve_rng_state=False).sum()

    with MemoryTracker(model, inputs=[x]) as plain:
        model(x).sum().backward()
    model.zero_grad()
    with MemoryTracker(model, inputs=[x]) as recomputed:
        checkpointed().backward()
    hidden = 512 * 256 * 4
    assert plain.activation_bytes >= 3 * hidden
    assert recomputed.activation_bytes < hidden
    assert recomputed.peak.phase == "backward"


def test_resized_storages_are_followed():
    x, before = torch.zeros(1000), torch.UntypedStorage.resize_
    with MemoryTracker(inputs=[x]) as tracker:
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(4000)
        torch.ones(1)
    assert tracker.history.total().tolist() == [4000, 0, 0, 0, 4000, 4004, 4000]
    assert torch.UntypedStorage.resize_ is before  # and torch is as it was


def test_a_failing_step_leaves_no_hook_behind():
    model, (x, y) = Transformer(CONFIG), batch()
    with pytest.raises(ValueError, match="tokens of this model are 0 to 63"):
        with MemoryTracker(model, inputs=[x, y]):
            model.loss(x + 1000, y)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    with MemoryTracker(model, inputs=[x, y]) as tracker:
        model.loss(x, y).backward()
    assert tracker.peak.bytes > 0


def test_an_empty_block_says_so():
    with MemoryTracker() as tracker:
        pass
    with pytest.raises(ValueError, match="nothing was tracked"):
        _ = tracker.peak


def test_the_same_peak_as_pytorchs_own_tracker():
    mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model, (x, y) = Transformer(CONFIG), batch()
    theirs = mem_tracker.MemTracker()
    theirs.track_external(model)
    with theirs:
        model.loss(x, y).backward()
    peak = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    model.zero_grad()
    with MemoryTracker(model, inputs=[x, y]) as ours:
        model.loss(x, y).backward()
    assert ours.peak.bytes == pytest.approx(peak, rel=0.01)


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_counts_the_same():
    on = device.for_rank(0)
    model, (x, y) = Transformer(CONFIG).to(on), batch(on)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()

    step()  # cuBLAS takes its workspace
    device.synchronize(on)
    before = device.memory_allocated(on)
    with MemoryTracker(model, optimizer, [x, y]) as tracker:
        device.reset_peak_memory(on)
        step()
        device.synchronize(on)
    first = sum(held(model, optimizer).values())
    # Blocks are rounded up to 512 bytes, and workspaces are not storages.
    rounding = 512 * len(tracker.peak.alive)
    workspace = max(0, before - first)
    assert abs(device.peak_memory(on) - tracker.peak.bytes) <= rounding + workspace


def test_the_tracker_counts_no_memory_on_meta_and_of_a_dtensor_this_ranks_part():
    def building(where: str) -> tuple[float, int]:
        with MemoryTracker() as tracker:
            with torch.device(where):
                model = Transformer(CONFIG)
            for module in (*model.blocks, model):
                fully_shard(module)
        shards = sum(p.to_local().nbytes for p in model.parameters())
        return tracker.peak.bytes, shards

    whole = 4 * parameter_count(Transformer(CONFIG))
    unit = 4 * max(parameter_count(block) for block in Transformer(CONFIG).blocks)
    for peak, _ in launch(building, 2, "cpu", device="cpu"):
        assert whole <= peak < 2 * whole
    peak, shards = launch(building, 2, "meta", device="cpu")[1]  # rank 0 makes the values
    assert shards <= peak <= shards + 1.5 * unit
