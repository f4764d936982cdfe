"""Which axis of a mesh a group is: under that name its messages are counted and recorded.

The groups that torch makes for a DeviceMesh know it. Two others do not: a group of several axes taken as one, and the
default group, which torch takes for an axis over all ranks. Whoever has those names them:

    mesh_axes.name(mesh.get_group("tp"), "tp")
"""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

from dtcourse import events, torch_private

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def name(group: dist.ProcessGroup, axis: str) -> None:
    """From here on the group's messages are this axis'."""
    _names[group] = axis
    events.changed()


def axis_of(group: Any) -> str:
    """The name of a group's axis; empty where it is no mesh's, or nobody has said."""
    named = _names.get(group)
    return torch_private.axis_of_mesh(group) if named is None else named


def detail(group: Any) -> dict[str, str]:
    """What an event of the group says of it."""
    axis = axis_of(group)
    return {"axis": axis} if axis else {}
