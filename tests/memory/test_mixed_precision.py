"""Master weights: the update that 16 bits lose, equality with float32 by hand, and what the wrapper refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.memory import GradScaler, MasterWeights
from dtcourse.profiling.memory import held
from dtcourse.verify import CASES, compare


def test_an_update_is_lost_in_bfloat16_without_master_weights():
    """1000 times 1.0 - 0.001: the neighbour of 1.0 below is 1/256 away, so nothing ever happens."""
    results = {}
    for name, build in {
        "bfloat16": lambda p: torch.optim.SGD(p, lr=1e-3),
        "master": lambda p: MasterWeights(p, torch.optim.SGD, lr=1e-3),
    }.items():
        w = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        optimizer = build([w])
        for _ in range(500):
            w.grad = torch.ones_like(w)
            optimizer.step()
        results[name] = w.item()
    assert results["bfloat16"] == 1.0
    assert results["master"] == 0.5


def batch(dtype):
    inputs, targets = CASES["mlp"].batch(16, 0)
    return inputs.to(dtype), targets


def train(optimizer_class, dtype, steps=5, **kwargs):
    """MasterWeights, against the same by hand: gradients of a 16-bit model, a plain optimizer on float32 copies."""
    inputs, targets = batch(dtype)
    model = CASES["mlp"].build(0).to(dtype)
    by_hand = copy.deepcopy(model)
    copies = [nn.Parameter(p.detach().float()) for p in by_hand.parameters()]
    mine = MasterWeights(model.parameters(), optimizer_class, **kwargs)
    plain = optimizer_class(copies, **kwargs)
    for _ in range(steps):
        for m in (model, by_hand):
            m.zero_grad()
            CASES["mlp"].loss(m(inputs).float(), targets).backward()
        for c, p in zip(copies, by_hand.parameters(), strict=True):
            c.grad = p.grad.float()
        mine.step()
        mine.zero_grad()
        plain.step()
        with torch.no_grad():
            for c, p in zip(copies, by_hand.parameters(), strict=True):
                p.copy_(c)
    return model, mine, by_hand, copies


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("optimizer_class", "kwargs"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.Adafactor, {"lr": 0.01}),
    ],
)
def test_equal_to_float32_copies_by_hand(optimizer_class, kwargs, dtype):
    model, mine, by_hand, copies = train(optimizer_class, dtype, **kwargs)
    for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert p.dtype == dtype and torch.equal(p, q)
    for m, c in zip(mine.master_parameters(), copies, strict=True):
        assert m.dtype == torch.float32 and torch.equal(m, c)


def test_bytes_a_parameter():
    """2 for the parameter, 2 its gradient, 4 the master and 8 Adam's moments: 16."""
    model = nn.Linear(64, 64, bias=False).bfloat16()
    optimizer = MasterWeights(model.parameters(), torch.optim.Adam)
    for _ in range(2):
        model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
    bytes_each = {kind: nbytes / 64**2 for kind, nbytes in held(model, optimizer).items()}
    step_counter = 4 / 64**2
    assert bytes_each == {
        "parameters": 2, "gradients": 2, "optimizer states": 4 + 8 + step_counter, "buffers": 0
    }  # fmt: skip


def test_masters_are_rounded_into_the_model():
    w, own = nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), nn.Parameter(torch.ones(3))
    optimizer = MasterWeights([w, own], torch.optim.SGD, lr=1.0)
    with torch.no_grad():
        for master in optimizer.master_parameters():
            master += 1 / 256 + 1 / 1024
    optimizer.round_into_model()
    assert w.tolist() == [1 + 1 / 128] * 3  # the neighbour above
    assert own.tolist() == [1 + 1 / 256 + 1 / 1024] * 3  # is its own master


def test_micro_batches_add_up_in_float32():
    """256 gradients of 1 after one of 256: bfloat16 stays at 256 for ever."""
    sums = {}
    for collect in (False, True):
        w = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        optimizer = MasterWeights([w], torch.optim.SGD, lr=1.0)
        for i in range(257):
            (w * (256 if i == 0 else 1)).sum().backward()
            if collect:
                optimizer.copy_grads_to_masters()
                assert w.grad is None
        optimizer.copy_grads_to_masters()
        sums[collect] = optimizer.master_parameters()[0].grad.item()
    assert sums == {False: 256.0, True: 512.0}


@pytest.mark.parametrize("scaler", [GradScaler, torch.amp.GradScaler])
def test_with_a_loss_scaler_and_clipping(scaler):
    """float16 whole: scaled, collected, unscaled and clipped in float32; an overflow is skipped."""
    inputs, targets = batch(torch.float16)
    model = CASES["mlp"].build(0).half()
    by_hand = CASES["mlp"].build(0).half()
    CASES["mlp"].loss(by_hand(inputs).float(), targets).backward()
    norm = torch.cat([p.grad.float().flatten() for p in by_hand.parameters()]).norm()
    optimizer, scaler = (
        MasterWeights(model.parameters(), torch.optim.SGD, lr=1.0),
        scaler("cpu", 2.0**8),
    )
    before = [p.detach().clone() for p in optimizer.master_parameters()]
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        loss = CASES["mlp"].loss(model(inputs).float(), targets) * factor
        scaler.scale(loss).backward()
        optimizer.copy_grads_to_masters()
        scaler.unscale_(optimizer)
        seen = nn.utils.clip_grad_norm_(optimizer.master_parameters(), 0.25)
        scaler.step(optimizer)
        scaler.update()
        if factor != 1.0:
            assert scaler.get_scale() == 2.0**7
            after = optimizer.master_parameters()
            assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert seen.item() == pytest.approx(norm.item(), rel=2e-3)
    moved = [b - a.detach() for a, b in zip(optimizer.master_parameters(), before, strict=True)]
    length = torch.cat([m.flatten() for m in moved]).norm().item()
    assert length == pytest.approx(0.25, rel=1e-4)


def test_groups_schedulers_float32_frozen_and_tied_parameters():
    model = CASES["tied"].build(0)
    model.mix.bfloat16()
    model.mix.bias.requires_grad_(False)
    optimizer = MasterWeights(
        [
            {"params": [model.embed.weight], "lr": 0.5},  # float32: its own master
            {"params": model.mix.parameters(), "weight_decay": 0.1},
        ],
        torch.optim.SGD,
        lr=0.1,
    )
    own, master, frozen = optimizer.master_parameters()
    assert own is model.embed.weight and frozen is model.mix.bias
    assert master.dtype == torch.float32 and master is not model.mix.weight
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = own.detach().clone(), frozen.detach().clone(), master.detach().clone()
    own.grad, model.mix.weight.grad = torch.ones_like(own), torch.ones_like(model.mix.weight)
    optimizer.step()
    schedule.step()
    assert torch.equal(own, before[0] - 0.5) and torch.equal(frozen, before[1])
    assert torch.allclose(master, before[2] - 0.1 * (1 + 0.1 * before[2]))
    assert torch.equal(model.mix.weight, master.bfloat16())
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.05]
    added = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer.add_param_group({"params": added, "lr": 1.0})
    added.grad = torch.full_like(added, 1e-3)
    optimizer.step()
    assert optimizer.master_parameters()[-1].tolist() == pytest.approx([0.999, 0.999])
    assert added.tolist() == [1.0, 1.0]


def test_lbfgs_asks_for_the_loss_itself():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 3).bfloat16(), torch.randn(5, 3).bfloat16()
    optimizer = MasterWeights(model.parameters(), torch.optim.LBFGS, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x).float().square().mean()
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    for _ in range(5):
        last = optimizer.step(closure).item()
    assert last < first / 10


def test_a_resumed_run_is_the_run_that_was_not_interrupted():
    inputs, targets = batch(torch.bfloat16)

    def build():
        model = CASES["mlp"].build(0).bfloat16()
        return model, MasterWeights(model.parameters(), torch.optim.Adam, lr=0.01)

    def go_on(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            CASES["mlp"].loss(model(inputs).float(), targets).backward()
            optimizer.step()

    whole, first, second = build(), build(), build()
    go_on(*whole, 6)
    go_on(*first, 3)
    saved = copy.deepcopy(first[1].state_dict())
    second[1].load_state_dict(saved)  # of the model nothing was saved: it is the masters, rounded
    group = second[1].param_groups[0]
    go_on(*second, 3)
    for a, b in zip(whole[1].master_parameters(), second[1].master_parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)
    assert group is second[1].param_groups[0]
    assert all(s["exp_avg"].dtype == torch.float32 for s in second[1].state.values())


def test_over_data_parallel_ranks():
    """DDP averages 16-bit gradients in its buckets; the masters take them from there."""

    def step():
        inputs, targets = CASES["mlp"].batch(24, 0)
        model = DistributedDataParallel(CASES["mlp"].build(0).bfloat16())
        optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.1)
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        for _ in range(2):
            optimizer.zero_grad()
            out = model(inputs.chunk(size)[rank].bfloat16())
            CASES["mlp"].loss(out.float(), targets.chunk(size)[rank]).backward()
            optimizer.step()
        return {n: p.detach().float() for n, p in model.module.named_parameters()}

    one, two = launch(step, 1)[0], launch(step, 2)
    compare(two[0], two[1], tolerance=0.0)
    compare(two[0], one, tolerance=2e-2)


# --- mistakes -----------------------------------------------------------------------------------------------------


def built():
    model = nn.Linear(2, 2, bias=False).bfloat16()
    return model, MasterWeights(model.parameters(), torch.optim.Adam, lr=0.1)


def test_a_step_without_backward():
    _, optimizer = built()
    with pytest.raises(RuntimeError, match="step comes after backward"):
        optimizer.step()


def test_a_model_loaded_behind_the_optimizers_back():
    """The old masters would be rounded over what was loaded."""
    model, optimizer = built()
    model.load_state_dict({"weight": torch.full((2, 2), 3.0)})
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(RuntimeError, match=r"1 of 1 parameters were changed .* call refresh\(\)"):
        optimizer.step()
    assert (model.weight == 3).all()
    optimizer.refresh()
    optimizer.step()
    assert torch.allclose(optimizer.master_parameters()[0], torch.full((2, 2), 2.9))


def test_a_model_converted_after_the_optimizer_was_built():
    model, optimizer = built()
    model.weight = nn.Parameter(model.weight.detach().clone())
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    with pytest.raises(RuntimeError, match="build the optimizer again, over the new parameters"):
        optimizer.step()


def test_a_parameter_unfrozen_later_has_no_master():
    model = nn.Linear(2, 2).bfloat16()
    model.bias.requires_grad_(False)
    optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.1)
    model.bias.requires_grad_(True)
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    with pytest.raises(ValueError, match=r"bfloat16 parameter of shape \[2\] was frozen"):
        optimizer.step()


def test_sparse_gradients():
    table = nn.Embedding(3, 2, sparse=True).bfloat16()
    optimizer = MasterWeights(table.parameters(), torch.optim.SGD, lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="keep this parameter in float32"):
        optimizer.step()


def test_a_parameter_given_twice():
    w = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="more than one parameter group"):
        MasterWeights([{"params": [w]}, {"params": [w]}], torch.optim.SGD, lr=0.1)
    optimizer = MasterWeights([w], torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [w]})


def damage(**changes):
    def apply(state):
        return {k: v for k, v in (state | changes).items() if v is not None}

    return apply


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (damage(masters=None), "lacks masters: was it saved by a plain optimizer"),
        (damage(state=None), "lacks state"),
        (damage(masters=[[torch.ones(3, 2)]]), r"\(3, 2\).*\(2, 2\).*of another model"),
        (damage(masters=[[torch.ones(2, 2), torch.ones(2)]]), "of another model"),
        (damage(masters=[[torch.ones(2, 2).half()]]), r"torch.float16 .* should be float32"),
        (damage(masters=[[torch.full((2, 2), torch.nan)]]), "not finite"),
        (damage(param_groups=[{"lr": 1.0, "params": [0, 1]}]), "doesn't match the size"),
    ],
)
def test_a_damaged_state_dict_changes_nothing(damaged, message):
    model, optimizer = built()
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(damaged(copy.deepcopy(before)))
    after = optimizer.state_dict()
    assert torch.equal(before["masters"][0][0], after["masters"][0][0])
    assert torch.equal(before["state"][0]["exp_avg"], after["state"][0]["exp_avg"])
    assert before["param_groups"] == after["param_groups"]
    assert torch.equal(model.weight, before["masters"][0][0].bfloat16())
