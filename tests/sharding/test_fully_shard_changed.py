"""Parameters that change after fully_shard: converted, given memory, frozen and unfrozen; and methods besides forward.

Beside PyTorch's fully_shard, and one process.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as torchs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, sharding
from dtcourse.sharding import FullyShardedDataParallel, full_gradients, full_state_dict
from dtcourse.verify import compare
from tests.turns import taking_turns

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")

WHICH = {"ours": sharding.fully_shard, "torch": torchs.fully_shard}


class Net(nn.Module):
    """Rows that do not divide, a tied weight, a unit inside, and a method that is no forward."""

    def __init__(self, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 5)
        self.block = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 5))
        self.norm = nn.LayerNorm(5)
        self.output = nn.Linear(5, 7, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.encode(tokens))

    def encode(self, tokens):
        x = self.embedding(tokens)
        return self.norm(x + self.block(x))

    def twice(self, tokens):
        """A method that calls the module, and goes on with its parameters."""
        return self(tokens) + self.output(self.encode(tokens))


def made(which="plain", tied=True, prepare=lambda net: net, **options):
    net = prepare(Net(tied).double())
    if which == "plain":
        return net
    WHICH[which](net.block, **options)
    return WHICH[which](net, **options)


def batch(step=0, size=8):
    make = torch.Generator().manual_seed(step)
    return torch.randint(7, (size, 2), generator=make)


def part(step=0):
    rank, p = dist.get_rank(), dist.get_world_size()
    return batch(step)[rank * 8 // p : (rank + 1) * 8 // p]


def backward(net, x, method="forward"):
    """This rank's share of the loss: its mean over the ranks is that of one process."""
    whole = 8 / len(x) if len(x) else 1.0
    y = net(x) if method == "forward" else getattr(net, method)(x)
    p = 8 / len(x)
    (y.sin().sum() * p / whole).backward()


def gradients(net, which):
    if which == "ours":
        return full_gradients(net)
    return {
        n: None if p.grad is None else (p.grad.full_tensor() if which == "torch" else p.grad)
        for n, p in net.named_parameters()
    }


def state(net, which):
    if which == "ours":
        return full_state_dict(net)
    found = net.state_dict()
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in found.items()}


# --- frozen and unfrozen between steps ------------------------------------------------------------------------------

FLIPS = [
    {},
    {"embedding.weight": False},  # the tied one
    {"block.0.weight": False, "norm.bias": False},
    {"embedding.weight": True, "block.0.weight": True},
    {"block.0.weight": False, "block.0.bias": False, "block.2.weight": False, "block.2.bias": False},
    {"norm.bias": True, "block.2.bias": True},
]  # fmt: skip


def flipped(which, tied=True, **options):
    """Gradients of each step and the parameters at the end, with momentum and weight decay."""
    net = made(which, tied, **options)
    held = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)
    found = []
    for step, flip in enumerate(FLIPS):
        for name, trains in flip.items():
            dict(net.named_parameters())[name].requires_grad_(trains)
        optimizer.zero_grad()
        if which == "plain":
            (net(batch(step)).sin().sum() / dist.get_world_size()).backward()
        else:
            net(part(step)).sin().sum().backward()
        found.append(gradients(net, which))
        optimizer.step()
    if which != "plain":
        assert all(p is held[n] for n, p in net.named_parameters()), "the optimizer's own"
    return [*found, state(net, which)]


def all_flipped(tied, options):
    mine = flipped("ours", tied, **options)
    return mine, flipped("torch", tied, **options), flipped("plain", tied)


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_what_is_frozen_between_steps_is_as_in_one_process(world_size, tied):
    for ours, theirs, right in launch(all_flipped, world_size, tied, {}):
        for step, (a, b, c) in enumerate(zip(ours, theirs, right, strict=True)):
            assert {n for n, g in a.items() if g is None} == {n for n, g in c.items() if g is None}
            compare(a, c, 1e-11, f"step {step}, one process")
            compare(a, b, 1e-11, f"step {step}, PyTorch's")


@pytest.mark.parametrize("keeps", [True, False], ids=["freed", "kept"])
def test_kept_units_and_hybrid_meshes_too(keeps):
    def hybrid():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return flipped("ours", reshard_after_forward=keeps, mesh=mesh), flipped("plain")

    for ours, right in launch(hybrid, 4):
        for step, (a, c) in enumerate(zip(ours, right, strict=True)):
            compare(a, c, 1e-11, f"step {step}")


def offloaded():
    policy = sharding.CPUOffloadPolicy(pin_memory=False)
    mine = flipped("ours", offload_policy=policy)
    narrow = sharding.MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    return mine, flipped("ours", mp_policy=narrow), flipped("plain")


def test_with_offload_and_in_mixed_precision():
    for mine, narrow, right in launch(offloaded, 3):
        for step, (a, b, c) in enumerate(zip(mine, narrow, right, strict=True)):
            compare(a, c, 1e-11, f"step {step}")
            compare(b, c, 1e-4, f"step {step}, in single precision", norm=2)


def between():
    """What is told, on all ranks, where the time or the ranks are wrong; afterwards it goes on."""
    said = {}

    def attempt(name, do):
        try:
            do()
            said[name] = "nothing"
        except (ValueError, RuntimeError) as error:
            said[name] = f"{type(error).__name__}: {error}"

    net = made("ours")
    loss = net(part()).sum()
    net.norm.bias.requires_grad_(False)
    attempt("between forward and backward", loss.backward)
    kept = made("ours", reshard_after_forward=False)
    loss = kept(part()).sum()
    kept.block[0].bias.requires_grad_(False)
    attempt("kept", loss.backward)
    net = made("ours")
    net.set_requires_gradient_sync(False)
    net(part()).sum().backward()
    net.set_requires_gradient_sync(True)
    net.norm.bias.requires_grad_(False)
    attempt("unsent", lambda: net(part()))
    net = made("ours")
    (net.norm.bias if dist.get_rank() else net.norm.weight).requires_grad_(False)
    attempt("differently", lambda: net(part()))
    net.norm.bias.requires_grad_(False)
    net.norm.weight.requires_grad_(False)
    attempt("alike again", lambda: backward(net, part()))
    flat = FullyShardedDataParallel(Net().double())
    flat.norm.bias.requires_grad_(False)
    attempt("flat", lambda: flat(part()))
    return said


def test_changes_at_the_wrong_time_or_on_one_rank_are_told():
    for said in launch(between, 2):
        assert "between its forward and this backward" in said["between forward and backward"]
        assert "between its forward and this backward" in said["kept"]
        assert "wait to be sent" in said["unsent"]
        assert "have changed different parameters" in said["differently"]
        assert "norm.weight [5] float64 (frozen)" in said["differently"]
        assert said["alike again"] == "nothing"
        assert "requires_grad of norm.bias" in said["flat"]


def frozen_while_whole():
    """requires_grad_ after unshard() is of the whole parameter, and stays when it is freed."""
    net, plain = made("ours"), made()
    net.unshard()
    net.norm.bias.requires_grad_(False)
    plain.norm.bias.requires_grad_(False)
    net.reshard()
    assert not net.norm.bias.requires_grad
    for _ in range(2):
        net.zero_grad()
        plain.zero_grad()
        net(part()).sin().sum().backward()
        (plain(batch()).sin().sum() / dist.get_world_size()).backward()
        found, right = full_gradients(net), gradients(plain, "plain")
        assert found["norm.bias"] is None and right["norm.bias"] is None
        compare(found, right, 1e-11)
    return True


def test_what_is_frozen_while_it_is_whole():
    assert [*launch(frozen_while_whole, 2)] == [True] * 2


# --- converted --------------------------------------------------------------------------------------------------------


def converted(which):
    """To float32 and back to float64, in the middle of training; a part of a unit alone; with gradients there."""
    net = made(which)
    if which == "plain":
        x, divide = batch(), dist.get_world_size()
    else:
        x, divide = part(), 1
    held = dict(net.named_parameters())
    found = []
    for change in (
        lambda: net.float(),
        lambda: net.to(torch.float64),
        lambda: net.block.float() if which == "plain" else net.block.to(torch.float32),
        lambda: net.double(),
    ):
        change()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        if net.block[0].weight.dtype == net.embedding.weight.dtype:
            (net(x).sin().sum() / divide).backward()
            optimizer.step()
            found.append(gradients(net, which))
            optimizer.zero_grad()
    assert all(p is held[n] for n, p in net.named_parameters()) or which == "plain"
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    return [*found, state(net, which)]


def all_converted():
    return converted("ours"), converted("plain")


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/sharding/")])
def test_a_sharded_model_is_converted_as_one_process(world_size):
    for ours, right in launch(all_converted, world_size):
        assert len(ours) == 4
        for step, (a, c) in enumerate(zip(ours, right, strict=True)):
            assert all(a[n].dtype == c[n].dtype for n in c)
            # Single precision in the first step, whose rounding stays.
            compare(a, c, 1e-5, f"step {step}, one process")


def converted_first():
    """PyTorch's own takes one conversion, before the first forward."""
    found = []
    for which in WHICH:
        net = made(which).float()
        net(part()).sin().sum().backward()
        found.append((gradients(net, which), state(net, which)))
    return found


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_conversion_before_the_first_forward_is_as_pytorchs(world_size):
    for ours, theirs in launch(converted_first, world_size):
        for a, b in zip(ours, theirs, strict=True):
            assert {t.dtype for t in a.values()} == {torch.float32}
            compare(a, b, 1e-6)


def of_two_dtypes():
    """A part of a unit is converted: it is gathered apart from the rest from now on."""
    net, plain = sharding.fully_shard(Net(tied=False)), Net(tied=False)
    for one in (net, plain):
        one.output.double()
        one.register_buffer("scale", torch.ones(()), persistent=False)
    x = part()
    for one, tokens, divide in ((net, x, 1), (plain, batch(), dist.get_world_size())):
        hook = one.output.register_forward_pre_hook(lambda m, a: (a[0].double(),))
        (one(tokens).sin().sum() / divide).backward()
        hook.remove()
    found = full_gradients(net)
    assert found["output.weight"].dtype == torch.float64
    compare(found, gradients(plain, "plain"), 1e-5)
    return len(net._fsdp.param_groups)


def test_a_part_of_a_unit_in_another_dtype():
    assert [*launch(of_two_dtypes, 2)] == [2, 2]


# --- memory and values afterwards -------------------------------------------------------------------------------------


class Scale(nn.Module):
    """No reset_parameters; a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(5))
        self.bias = nn.Parameter(torch.empty(3, 2))
        self.register_buffer("shift", torch.empty(5))

    def forward(self, x):
        return (x * self.scale + self.shift) @ torch.ones(5, 3) @ self.bias


def filled_later(which):
    said = []
    for fails in (True, False):  # PyTorch's does not go on after the error
        with torch.device("meta"):
            net = nn.Sequential(Scale(), nn.Linear(2, 3))
        WHICH[which](net[0])
        WHICH[which](net)
        assert net[0].scale.is_meta
        if fails or which == "ours":
            try:
                net(torch.ones(2, 5))
            except RuntimeError as error:
                said.append(str(error))
    net.to_empty(device="cpu")
    values = torch.Generator().manual_seed(4)
    whole = {n: torch.randn(t.shape, generator=values) for n, t in sorted(net.state_dict().items())}
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(
                torch.distributed.tensor.distribute_tensor(whole[name], p.device_mesh, p.placements)
            )
        net[0].shift.copy_(whole["0.shift"])
    x = torch.ones(2, 5) * (1 + dist.get_rank())
    y = net(x)
    y.sin().sum().backward()
    return said, y.detach(), gradients(net, which), state(net, which), whole


def both_filled():
    return filled_later("ours"), filled_later("torch")


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, about="dtcourse/sharding/")])
def test_memory_and_values_come_after_fully_shard(world_size):
    for ours, theirs in launch(both_filled, world_size):
        for said, *_ in (ours, theirs):
            assert "should be materialized from meta device" in said[0]
        assert "['scale', 'bias']" in ours[0][0]
        compare({"y": ours[1]}, {"y": theirs[1]}, 1e-6)
        compare(ours[2], theirs[2], 1e-6)
        compare(ours[3], ours[4], 0.0)


def emptied(which):
    """PyTorch's recipe on a model whose modules fill themselves, and a state that is loaded into an empty one."""
    with torch.device("meta"):
        net = Net()
    WHICH[which](net.block)
    WHICH[which](net)
    net.to_empty(device="cpu")
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    net.double()
    if which == "ours":
        sharding.load_full_state_dict(net, Net().double().state_dict())
    plain = Net().double()
    (plain(batch()).sin().sum() / dist.get_world_size()).backward()
    if which == "ours":
        net(part()).sin().sum().backward()
        compare(full_gradients(net), gradients(plain, "plain"), 1e-11)
        compare(full_state_dict(net), plain.state_dict(), 0.0)
    return True


def test_to_empty_then_reset_parameters_or_a_state():
    assert [*launch(emptied, 2, "ours")] == [True] * 2


def left_on_meta(which):
    """PyTorch's other recipe: sharded under torch.device("meta"), and a state of DTensors assigned."""
    with torch.device("meta"):
        net = Net(tied=False)
        WHICH[which](net.block)
        WHICH[which](net)
    assert all(p.is_meta for p in net.parameters())
    before = dict(net.named_parameters())
    whole = Net(tied=False).state_dict()
    state = {
        name: nn.Parameter(
            torch.distributed.tensor.distribute_tensor(whole[name], p.device_mesh, p.placements)
        )
        for name, p in net.named_parameters()
    }
    named_later = [name for name in state if name.startswith("block")]
    net.load_state_dict({name: state[name] for name in named_later}, strict=False, assign=True)
    assert all(p.is_meta != name.startswith("block") for name, p in net.named_parameters())
    net.load_state_dict(state, strict=False, assign=True)
    if which == "ours":
        assert all(p is before[name] for name, p in net.named_parameters()), (
            "an optimizer may hold them"
        )
    for buffer in net.buffers():
        assert not buffer.is_meta or which == "torch"
    net(part()).sin().sum().backward()
    return (
        gradients(net, which),
        {name: p.full_tensor().detach() for name, p in net.named_parameters()},
        whole,
    )


def test_a_state_is_assigned_to_what_was_left_on_meta():
    for (ours, held, whole), (theirs, *_) in zip(
        launch(left_on_meta, 2, "ours"), launch(left_on_meta, 2, "torch"), strict=True
    ):
        compare(ours, theirs, 1e-6)
        compare(held, {name: whole[name] for name in held}, 0.0)


class Listed(nn.ModuleList):
    def forward(self, x):
        for module in self:
            x = module(x)
        return x


def test_a_list_that_has_a_forward_is_a_module_as_any():
    def step():
        torch.manual_seed(0)
        net = Listed([nn.Linear(3, 4), nn.Linear(4, 2)])
        whole = deepcopy(net)
        sharding.fully_shard(net)
        x = torch.ones(2, 3)
        net(x).sin().sum().backward()
        whole(x).sin().sum().backward()
        compare(full_gradients(net), gradients(whole, "plain"), 1e-6)
        return True

    assert [*launch(step, 2)] == [True] * 2


def mixed():
    net = Scale()
    with torch.device("meta"):
        net.bias = nn.Parameter(torch.empty(3, 2))
    with pytest.raises(ValueError, match="has no reset_parameters"):
        sharding.fully_shard(net)
    with torch.device("meta"):
        net = Scale()
    with pytest.raises(ValueError, match="has no reset_parameters"):
        FullyShardedDataParallel(net)
    return True


def test_a_unit_half_on_meta_is_refused():
    assert [*launch(mixed, 2)] == [True] * 2


# --- methods besides forward ------------------------------------------------------------------------------------------


def methods(which, tied, freeze):
    net = made(which, tied, lambda net: freeze_some(net) if freeze else net)
    register = {"ours": sharding, "torch": torchs}.get(which)
    if register is not None:
        for name in ("encode", "twice"):
            register.register_fsdp_forward_method(net, name)
    found = []
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step, method in enumerate(("encode", "forward", "encode", "twice", "forward")):
        if which == "torch" and method == "twice":
            method = "forward"  # PyTorch's frees between the calls inside
        optimizer.zero_grad()
        x, divide = (batch(step), dist.get_world_size()) if which == "plain" else (part(step), 1)
        call = net if method == "forward" else getattr(net, method)
        (call(x).sin().sum() / divide).backward()
        found.append(gradients(net, which))
        optimizer.step()
    return [*found, state(net, which)]


def freeze_some(net):
    for p in (net.block[0].weight, net.norm.bias):
        p.requires_grad_(False)
    return net


def all_methods(tied, freeze):
    return [methods(which, tied, freeze) for which in ("ours", "torch", "plain")]


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
@pytest.mark.parametrize(("tied", "freeze"), [(True, False), (False, True), (True, True)])
def test_registered_methods_gather_and_reduce(world_size, tied, freeze):
    for ours, theirs, right in launch(all_methods, world_size, tied, freeze):
        for step, (a, b, c) in enumerate(zip(ours, theirs, right, strict=True)):
            compare(a, c, 1e-11, f"step {step}, one process")
            if step < 3:
                compare(a, b, 1e-11, f"step {step}, PyTorch's")


def around_methods():
    plain = nn.Linear(2, 2)
    sharding.register_fsdp_forward_method(plain, "no_such_method")  # a plain module: nothing
    net = made("ours")
    with pytest.raises(ValueError, match="does not have a method no_such_method"):
        sharding.register_fsdp_forward_method(net, "no_such_method")
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        net.encode(part())
    sharding.register_fsdp_forward_method(net, "encode")
    assert net.encode.__name__ == "encode"
    flat = FullyShardedDataParallel(Net().double())
    sharding.register_fsdp_forward_method(flat, "encode")
    compare({"y": flat.encode(batch())}, {"y": Net().double().encode(batch())}, 1e-12)
    with pytest.raises(IndexError):  # an error inside does not spoil the next call
        net.encode(torch.tensor([[99]]))
    assert type(net.embedding.weight).__name__ == "DTensor" or net.embedding.weight.is_leaf
    compare({"y": net.encode(batch())}, {"y": Net().double().encode(batch())}, 1e-12)
    return True


def test_a_method_that_is_not_registered_and_one_that_fails():
    assert [*launch(around_methods, 2)] == [True] * 2


# --- types of errors --------------------------------------------------------------------------------------------------


def kinds():
    found = {}
    for which, shard in WHICH.items():
        net = shard(nn.Linear(4, 4))
        for name, do in (
            ("twice", lambda n=net, s=shard: s(n)),
            ("copy", lambda n=net: deepcopy(n)),
        ):
            with pytest.raises(AssertionError) as error:
                do()
            found[which, name] = str(error.value)
    return found


def test_refusals_have_pytorchs_types_of_errors():
    (found,) = launch(kinds, 1)
    assert "FSDP does not support deepcopy" in found["ours", "copy"]
    assert "FSDP does not support deepcopy" in found["torch", "copy"]
    assert "shard a module once" in found["ours", "twice"]
