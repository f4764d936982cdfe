"""The names of PyTorch that are not public: which moved, and what stands on it.

A failure here means that the installed torch differs from the one this was written for (2.13). The message says what
to do; everything that uses the name is in dtcourse/torch_private, or named here.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, torch_private
from dtcourse.collectives.backend import register as backend
from dtcourse.collectives.backend.instrumented import InstrumentedGroup
from dtcourse.collectives.backend.process_group import AlgorithmGroup

MOVED = f"torch {torch.__version__}: {{}}. See dtcourse/torch_private."


def test_the_function_that_makes_a_store_is_where_it_was():
    made = importlib.import_module("torch.distributed.rendezvous")._create_c10d_store
    assert list(inspect.signature(made).parameters)[:2] == ["hostname", "port"], MOVED.format(
        "stores"
    )


def test_hooks_on_gradients_are_found():
    parameter = torch.nn.Parameter(torch.ones(1))
    assert torch_private.gradient_hooks(parameter) == []
    parameter.register_post_accumulate_grad_hook(print)
    assert torch_private.gradient_hooks(parameter) == [print]


def test_hooks_on_what_is_saved_are_seen():
    assert not torch_private.saves_through_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert torch_private.saves_through_hooks()
    assert not torch_private.saves_through_hooks()


def test_operations_are_hidden_from_the_modes_that_are_entered():
    class Counts(torch_private.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Counts() as mode:
        with torch_private.without_modes():
            torch.ones(1)
        assert mode.seen == 0
        torch.ones(1)
        assert mode.seen == 1


def around_and_hooked():
    class Seen(torch.nn.Linear):
        def forward(self, x):
            self.inside = torch_private.forward_of_torchs_wrapper()
            return super().forward(x)

    module = Seen(1, 1)
    wrapper = torch.nn.parallel.DistributedDataParallel(module)
    assert torch_private.comm_hooks_of(wrapper) == []
    wrapper.register_comm_hook(None, allreduce_hook)
    wrapper(torch.ones(1, 1))
    assert module.inside is wrapper
    assert torch_private.forward_of_torchs_wrapper() is None
    return len(torch_private.comm_hooks_of(wrapper))


def test_torchs_wrapper_says_that_it_is_around_and_has_a_hook():
    assert launch(around_and_hooked, 1)[0] == 1


def test_nests_of_a_checkpoint_are_made_again(tmp_path):
    nest = {"a": [torch.ones(1), {"b": 2}], "c": {"d": "e"}}
    dcp.save(nest, checkpoint_id=tmp_path, no_dist=True)
    paths = dcp.FileSystemReader(tmp_path).read_metadata().planner_data
    values = {"a.0": nest["a"][0], "a.1.b": 2, "c.d": "e"}
    assert torch_private.nests_again(values, paths) == nest


def test_process_group_has_the_methods_we_know_of():
    known = torch_private.DATA_METHODS | torch_private.OTHER_METHODS
    found = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    new, gone = sorted(found - known), sorted(known - found)
    assert not new, MOVED.format(
        f"ProcessGroup has new methods {new}; if one moves data, override it in collective_calls.py and "
        "instrumented.py (it runs on the inner gloo, silently) and add it to DATA_METHODS, else to OTHER_METHODS"
    )
    assert not gone, MOVED.format(f"ProcessGroup lost {gone}; callers may use another name now")


@pytest.mark.parametrize("group", [AlgorithmGroup, InstrumentedGroup])
def test_every_method_that_moves_data_is_overridden(group):
    ours = {
        name
        for kind in group.__mro__[: group.__mro__.index(dist.ProcessGroup)]
        for name in vars(kind)
    }
    missing = sorted(torch_private.DATA_METHODS - ours)
    assert not missing, f"{group.__name__} leaves {missing} to its inner group"


def test_the_creator_gets_the_fields_we_read():
    options = dist.distributed_c10d._DistributedBackendOptions()
    missing = [name for name in torch_private.CREATOR_FIELDS if not hasattr(options, name)]
    assert not missing, MOVED.format(f"a backend's creator is no longer given {missing}")


def test_backends_can_be_registered():
    backend.register()
    backend.register()  # again: nothing happens
    for name in backend.choices():
        assert name in dist.Backend.backend_list, MOVED.format("register_backend works otherwise")
        assert dist.Backend._plugins[name.upper()].extended_api


def axes_said():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    others = (dist.group.WORLD, line.get_group("dp"), dist.new_group([0, 1, 2, 3]), object())
    said = [torch_private.axis_of_mesh(mesh.get_group(axis)) for axis in ("dp", "tp")]
    return said, [torch_private.axis_of_mesh(group) for group in others]


def test_the_groups_of_a_mesh_say_which_axis_they_are():
    """mesh_axes.py counts messages by it; the default group is no axis, also where a mesh takes it for one."""
    said, of_others = launch(axes_said, 4)[0]
    assert said == ["dp", "tp"], MOVED.format("groups of a DeviceMesh are described otherwise")
    assert of_others == [""] * 4


def test_options_have_the_fields_we_read():
    c10d = dist.distributed_c10d
    fields = {
        "AllreduceOptions": {"reduceOp", "asyncOp"},
        "AllreduceCoalescedOptions": {"reduceOp", "asyncOp"},
        "BroadcastOptions": {"rootRank", "asyncOp"},
        "ReduceOptions": {"reduceOp", "rootRank", "asyncOp"},
        "ReduceScatterOptions": {"reduceOp", "asyncOp"},
        "GatherOptions": {"rootRank", "asyncOp"},
        "ScatterOptions": {"rootRank", "asyncOp"},
        "AllgatherOptions": {"asyncOp"},
        "AllToAllOptions": {"asyncOp"},
        "BarrierOptions": {"asyncOp"},
    }
    for kind, wanted in fields.items():
        missing = sorted(wanted - set(dir(getattr(c10d, kind)())))
        assert not missing, MOVED.format(f"{kind} lost {missing}")


def test_in_backward_is_true_in_a_backward_pass_only():
    assert hasattr(torch._C, "_current_graph_task_id"), MOVED.format(
        "torch._C._current_graph_task_id is gone: traffic cannot tell backward from forward"
    )
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: seen.append(torch_private.in_backward()))
    y = (x * 2).sum()
    assert not torch_private.in_backward()
    y.backward()
    assert seen == [True]
    assert not torch_private.in_backward()


def test_a_failed_future_raises_and_a_good_one_gives_its_tensors():
    tensors = [torch.ones(2)]
    good, trigger = torch_private.future_of(tensors)
    threading.Timer(0.01, trigger, [None]).start()
    assert torch.equal(good.wait()[0], tensors[0])
    bad, trigger = torch_private.future_of(tensors)
    trigger(ZeroDivisionError("injected"))
    with pytest.raises(Exception, match="injected"):
        bad.wait()
    with pytest.raises(Exception, match="injected"):  # C++ reads value() after done()
        bad.value()


def test_the_work_of_a_future_is_over_when_the_future_is():
    future: torch.futures.Future = torch.futures.Future()
    work = torch_private.work_of(future)
    assert isinstance(work, dist.Work)
    assert not work.is_completed()
    future.set_result([torch.ones(2)])
    assert work.wait()
    assert work.is_completed()
    assert torch.equal(work.get_future().wait()[0], torch.ones(2))


def test_a_gloo_group_outside_of_torchs_registry():
    store = dist.HashStore()
    inner = torch_private.gloo_group(store, 0, 1, timedelta(seconds=5))
    assert (inner.rank(), inner.size()) == (0, 1)
    x = torch.ones(3)
    inner.allreduce([x]).wait()
    group = torch_private.torch_group("gloo", dist.HashStore(), 0, 1, timedelta(seconds=5))
    assert torch_private.backend_of(group, torch.device("cpu")) is not None
    assert torch_private.gpu_backend_of(group) is None
    assert not dist.is_initialized()


def test_a_store_has_a_second_client():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = torch_private.own_client(dist.PrefixStore("a", store))
    other.set("k", "v")
    assert store.get("a/k") == b"v", MOVED.format("Store.clone works otherwise; guard.py needs it")
    assert other.compare_set("first", "", "mine") == b"mine"
    assert other.compare_set("first", "", "late") == b"mine"


def test_gloo_closes_its_connections_when_a_wait_passes_its_limit():
    """guard.py wakes whoever waits in that way."""
    store = dist.HashStore()
    groups: list = [None, None]

    def form(rank):
        groups[rank] = torch_private.gloo_group(store, rank, 2, timedelta(seconds=20))

    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    here = groups[0].recv([torch.ones(1)], 1, 1)
    there = groups[1].recv([torch.ones(1)], 0, 1)
    with pytest.raises(RuntimeError):
        groups[0].recv([torch.ones(1)], 1, 2).wait(timedelta(milliseconds=1))
    for waiting in (here, there):
        with pytest.raises(RuntimeError):
            waiting.wait(timedelta(seconds=10))


def test_a_process_says_its_groups_and_how_long_they_wait():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        other = dist.new_group([0])
        assert set(torch_private.groups_of_process()) == {dist.group.WORLD, other}
        torch_private.set_timeout(dist.group.WORLD, timedelta(hours=1))
        backend = torch_private.backend_of(dist.group.WORLD, torch.device("cpu"))
        assert backend.options._timeout == timedelta(hours=1), MOVED.format("_set_pg_timeout")
    finally:
        dist.destroy_process_group()


def test_each_iterator_of_a_loader_is_one_and_goes_on_by_its_next():
    loader = torch.utils.data.DataLoader(torch.arange(4), 2)
    assert isinstance(iter(loader), torch_private.LoaderIterator)
    assert "__next__" in vars(torch_private.LoaderIterator)


def test_a_fake_tensor_says_when_a_value_is_asked_of_it():
    """By the names of two exceptions, and what tolist() says; and where it is asked for its device."""
    with torch_private.without_values():
        x = torch.zeros(2)
        for read in (lambda: bool(x[0]), x.nonzero, x.tolist):
            with pytest.raises(RuntimeError) as caught:
                read()
            assert torch_private.needs_values(caught.value), MOVED.format(f"{caught.value!r}")

        class Counts(torch_private.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        seen: list = []
        with Counts():
            assert x.is_cpu
        assert seen == [torch_private.DEVICE_OF], MOVED.format("prim.device")


def test_the_mode_of_fake_tensors_is_found_by_its_key():
    from torch._subclasses.fake_tensor import FakeTensorMode

    key = torch_private.shapes._KEY
    assert torch._C._get_dispatch_mode(key) is None
    with FakeTensorMode() as mode:
        assert torch._C._get_dispatch_mode(key) is mode, MOVED.format("_get_dispatch_mode")


def test_a_group_without_a_backend_has_the_name_that_torch_gives_it():
    group = torch_private.GroupWithoutBackend(0, 1)
    group._set_group_name("seven")
    assert group.group_name == "seven"
    assert hasattr(dist.ProcessGroup, "_set_group_name"), MOVED.format("_set_group_name")
