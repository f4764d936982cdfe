"""What a tensor is: its class, its versions, its parts."""

from __future__ import annotations

from typing import Any

import torch

# What a class of tensors has that leaves dispatching alone.
_PLAIN = (torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__)


def is_plain(kind: type) -> bool:
    """Whether tensors of this class are nothing but tensors: no DTensor, no fake one,
    which handle operations themselves.
    """
    return getattr(kind, "__torch_dispatch__", None) in _PLAIN


def is_fake(kind: type) -> bool:
    """Whether this is the class of the tensors by which PyTorch works out shapes."""
    return kind.__name__ == "FakeTensor"


def address_of(tensor: torch.Tensor) -> int:
    """Where its memory begins. A fake tensor has none, and warns when it is asked: its address is 0."""
    return 0 if is_fake(type(tensor)) else tensor.data_ptr()


def fake_tensors() -> Any:
    """A context in which tensors have shapes and no data. Its import takes a while, so it waits until it is needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def hooks_on_gradient(tensor: torch.Tensor) -> list[Any]:
    """What `register_hook` has put on it: functions that see its gradient, and may return another one."""
    return list((tensor._backward_hooks or {}).values())


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of; None where it is none."""
    return tensor._base


def assert_later(condition: torch.Tensor, message: str) -> None:
    """Asserts a number on the device, and does not wait for it: on a GPU the next wait raises, on a CPU this line."""
    torch._assert_async(condition, message)


def version_of(tensor: torch.Tensor) -> int:
    """How often it has been changed in place, itself or through a view."""
    return tensor._version


def make_subclass(kind: type, tensor: torch.Tensor) -> Any:
    """A tensor of class `kind` that shares the memory of `tensor`."""
    return torch.Tensor._make_subclass(kind, tensor)


def dtensor_like(dtensor: Any, local: torch.Tensor) -> Any:
    """A DTensor laid out as `dtensor` is, of another local part; DTensor.from_local would work its layout out anew."""
    return type(dtensor)(local, dtensor._spec, requires_grad=False)


def strided_shard(dim: int, split_factor: int) -> Any:
    """The placement of slices of a dim that an inner axis of the mesh had cut before, into `split_factor` slices."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


def set_local(dtensor: Any, local: torch.Tensor) -> None:
    """Gives a DTensor another local part, of the same shape, dtype and device, in place."""
    dtensor._local_tensor = local


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The indices and values of a sparse tensor, coalesced or not; none of another layout."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else ()


# Inside, tensors of subclasses are treated as plain ones: their __torch_function__ is not called.
as_plain_tensors: Any = torch._C.DisableTorchFunctionSubclass


def shared_versions() -> Any:
    """A context in which detach() gives a tensor that counts changes together with its original, as above autograd."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)


def check_finite_and_multiply_(
    tensors: list[torch.Tensor], factor: float, device: torch.device
) -> torch.Tensor:
    """Multiplies tensors of one dtype in place. float32, on `device`: 1.0 where a number of
    them was not finite, else 0.0.
    """
    found, by = torch.zeros((), device=device), torch.full((), factor, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, by)
    return found
