"""Names of torch that are not public are used in dtcourse/torch_private alone: no file is excepted."""

from __future__ import annotations

import ast
import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

ROOT = Path(__file__).parents[2] / "dtcourse"
FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent.name != "torch_private")

# Things of torch that a file here may hold, and so ask for an attribute that is private.
_KINDS = (
    torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.optim.Optimizer, torch.storage.UntypedStorage,
    torch.autograd.Variable, dist.ProcessGroup, dist.Work, DataLoader, _MultiProcessingDataLoaderIter, Join, Joinable,
)  # fmt: skip
_MADE = (
    torch.nn.Linear(1, 1),
    torch.optim.SGD([torch.ones(1)]),
    torch.ops.aten.add,
    torch.ops.aten.add.Tensor,
)


class _Joins(Joinable):
    join_hook = join_device = join_process_group = None

    def __init__(self) -> None:
        super().__init__()


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


TORCHS = {name for thing in (*_KINDS, *_MADE, _Joins()) for name in dir(thing) if _private(name)}
TORCHS -= {"_abc_impl", *vars(multiprocessing.Process())}


def names_used(source: str) -> list[str]:
    """Private names of torch in a file, each with its line."""
    nodes = list(ast.walk(ast.parse(source)))
    found: list[str] = []
    of_torch: set[str] = set()  # what the file has imported from torch, by its name here
    own = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
           and isinstance(n.value, ast.Name) and n.value.id == "self"}  # fmt: skip
    own |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}

    def note(node: ast.AST, name: str) -> None:
        found.append(f"line {node.lineno}: {name}")  # type: ignore[attr-defined]

    def chain(node: ast.expr) -> tuple[str | None, list[str]]:
        """torch.a.b() -> ("torch", ["a", "b"]); None where it begins with something else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute | ast.Call):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            else:
                node = node.func
        return node.id if isinstance(node, ast.Name) else None, parts[::-1]

    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    of_torch.add(alias.asname or "torch")
                    if any(map(_private, alias.name.split("."))):
                        note(node, alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            of_torch |= {alias.asname or alias.name for alias in node.names}
            for path in (f"{node.module}.{alias.name}" for alias in node.names):
                if any(map(_private, path.split("."))):
                    note(node, path)
    for node in nodes:  # aten = torch.ops.aten
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and chain(node.value)[0] in of_torch
        ):
            of_torch |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _private(node.attr):
            root, parts = chain(node)
            by_torchs_class = node.attr in TORCHS and not (
                root == "self" and len(parts) == 1 and node.attr in own
            )
            if root in of_torch or by_torchs_class:
                note(node, ".".join([root or "...", *parts]))
        elif isinstance(node, ast.ClassDef) and node.bases:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in TORCHS:
                    note(method, f"{node.name}.{method.name}, which torch would call")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr")
        ):
            name = (
                node.args[1].value
                if len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
                else ""
            )
            if _private(str(name)) and (name in TORCHS or chain(node.args[0])[0] in of_torch):
                note(node, f"{node.func.id}(..., {name!r})")
    return found


def test_private_names_of_torch_are_in_torch_private_alone():
    assert len(FILES) > 100, "the files are looked for in the wrong place"
    found = {str(file.relative_to(ROOT.parent)): names_used(file.read_text()) for file in FILES}
    found = {file: names for file, names in found.items() if names}
    assert not found, f"give these a public name in dtcourse/torch_private, and use that: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._C import x",
        "from torch.utils import _pytree as tree",
        "import torch\ntorch._C.f()",
        "import torch as t\nt.ops.aten._softmax",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "import torch\naten = torch.ops.aten\naten._softmax",
        "from torch.distributed import distributed_c10d as c\nc._world",
        "from torch.autograd import Variable\nVariable._execution_engine.queue_callback(f)",
        "x._base",
        "self.shard._version",
        "self.inner._device_types",
        "super()._apply(f)",
        "class A(nn.Module):\n    def _apply(self, f): pass",
        "module._parameters['weight'] = y",
        "self._join_config.enable",
        "getattr(module, '_buffers')",
        "import torch\ngetattr(torch, '_foreach_norm')",
    ],
)  # fmt: skip
def test_it_finds(line):
    assert names_used(line)


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.Tensor.__torch_function__",
        "from dtcourse.torch_private import base_of\nbase_of(x)",
        "self._parameters = []\nself._parameters.append(1)",
        "self._buckets, other._fill",
        '"torch._dynamo"',
    ],
)
def test_it_lets_through(line):
    assert not names_used(line)
