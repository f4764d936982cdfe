"""What a module gets and gives, laid out as its neighbours need it: PyTorch's PrepareModuleInput and Output.

    plan = {"mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}

What becomes of a layout that another one is wanted for says layouts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel.layouts import only_local, only_sums, redistribute

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


@dataclass(frozen=True)
class PrepareModuleInput:
    """A module's inputs come as `input_layouts` and are wanted as `desired_input_layouts`: one each, or one for one.

    Where a layout is None, the input is no tensor, or stays as it is. input_kwarg_layouts: the same for keywords, by
    name. use_local_output: True; PyTorch's default gives the module DTensors, which modules here do not take.
    """

    input_layouts: Any = None
    desired_input_layouts: Any = None
    input_kwarg_layouts: Mapping[str, Placement] | None = None
    desired_input_kwarg_layouts: Mapping[str, Placement] | None = None
    use_local_output: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        has, wanted = _listed(self.input_layouts), _listed(self.desired_input_layouts)
        _same_length(has, wanted, "input_layouts and desired_input_layouts")
        by_name = self.input_kwarg_layouts or {}, self.desired_input_kwarg_layouts or {}
        if by_name[0].keys() != by_name[1].keys():
            raise ValueError(
                f"input_kwarg_layouts and desired_input_kwarg_layouts should have same length, and names: got "
                f"{sorted(by_name[0])} and {sorted(by_name[1])}"
            )
        only_sums(*(has or ()), *(wanted or ()), *by_name[0].values(), *by_name[1].values())
        only_local(self.use_local_output)

    def check(self, module: nn.Module, name: str, size: int) -> None:
        """Any module will do."""

    def cuts(self, module: nn.Module) -> dict[str, int]:
        """None: parameters stay."""
        return {}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        """The module itself, with a hook before its forward."""
        has, wanted = _listed(self.input_layouts), _listed(self.desired_input_layouts)
        named, named_wanted = (
            self.input_kwarg_layouts or {},
            self.desired_input_kwarg_layouts or {},
        )

        def prepare(module: nn.Module, args: Any, keywords: dict[str, Any]) -> Any:
            if has is not None and wanted is not None:
                args = _all(args, has, wanted, group, "module inputs and input_layouts")
            keywords = {
                key: redistribute(value, named[key], named_wanted[key], group)
                if key in named
                else value
                for key, value in keywords.items()
            }
            return args, keywords

        module.register_forward_pre_hook(prepare, with_kwargs=True)
        return module


@dataclass(frozen=True)
class PrepareModuleOutput:
    """A module's outputs come as `output_layouts` and are wanted as `desired_output_layouts`: as PrepareModuleInput."""

    output_layouts: Any
    desired_output_layouts: Any
    use_local_output: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        has, wanted = _listed(self.output_layouts), _listed(self.desired_output_layouts)
        _same_length(has, wanted, "output_layouts and desired_output_layouts")
        only_sums(*(has or ()), *(wanted or ()))
        only_local(self.use_local_output)

    def check(self, module: nn.Module, name: str, size: int) -> None:
        """Any module will do."""

    def cuts(self, module: nn.Module) -> dict[str, int]:
        """None: parameters stay."""
        return {}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        """The module itself, with a hook after its forward."""
        has, wanted = _listed(self.output_layouts) or (), _listed(self.desired_output_layouts) or ()

        def prepare(module: nn.Module, args: Any, output: Any) -> Any:
            several = isinstance(output, tuple)
            outputs = output if several else (output,)
            outputs = _all(outputs, has, wanted, group, "module outputs and output_layouts")
            return outputs if several else outputs[0]

        module.register_forward_hook(prepare)
        return module


@dataclass(frozen=True, kw_only=True)
class PrepareModuleInputOutput:
    """Both of them, for one module; keywords are theirs."""

    input_layouts: Any = None
    desired_input_layouts: Any = None
    input_kwarg_layouts: Mapping[str, Placement] | None = None
    desired_input_kwarg_layouts: Mapping[str, Placement] | None = None
    output_layouts: Any
    desired_output_layouts: Any
    use_local_input: bool = True
    use_local_output: bool = True

    def __post_init__(self) -> None:
        self._both()

    def _both(self) -> tuple[PrepareModuleInput, PrepareModuleOutput]:
        first = PrepareModuleInput(
            self.input_layouts,
            self.desired_input_layouts,
            self.input_kwarg_layouts,
            self.desired_input_kwarg_layouts,
            use_local_output=self.use_local_input,
        )
        return first, PrepareModuleOutput(
            self.output_layouts, self.desired_output_layouts, use_local_output=self.use_local_output
        )

    def check(self, module: nn.Module, name: str, size: int) -> None:
        """Any module will do."""

    def cuts(self, module: nn.Module) -> dict[str, int]:
        """None: parameters stay."""
        return {}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        """The module itself, with a hook on either side of its forward."""
        for style in self._both():
            module = style.apply(module, group)
        return module


def _all(
    tensors: Sequence[Any], has: Sequence[Any], wanted: Sequence[Any], group: Group, what: str
) -> tuple[Any, ...]:
    if len(tensors) != len(has):
        raise ValueError(
            f"{what} should have same length: there are {len(tensors)} and {len(has)}; None is the layout of what "
            "stays as it is"
        )
    return tuple(
        t if h is None else redistribute(t, h, h if w is None else w, group)
        for t, h, w in zip(tensors, has, wanted, strict=True)
    )


def _listed(layouts: Any) -> tuple[Any, ...] | None:
    """One placement is that of the only tensor."""
    if layouts is None:
        return None
    return tuple(layouts) if isinstance(layouts, tuple | list) else (layouts,)


def _same_length(has: Sequence[Any] | None, wanted: Sequence[Any] | None, what: str) -> None:
    counts = [0 if layouts is None else len(layouts) for layouts in (has, wanted)]
    if counts[0] != counts[1]:
        raise ValueError(f"{what} should have same length: got {counts[0]} and {counts[1]}")
