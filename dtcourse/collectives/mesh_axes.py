"""Which axis of a mesh a group is: under that name its messages are counted and recorded.

The groups that torch makes for a DeviceMesh know it. Two others do not: a group of several axes taken as one, and the
default group, which torch takes for an axis over all ranks. Whoever has those names them:

    mesh_axes.name(mesh.get_group("tp"), "tp")
"""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_OF_A_MESH = "mesh_"  # so torch begins the description of a group that it makes for an axis
_OF_ALL_RANKS = "mesh_default"


def name(group: dist.ProcessGroup, axis: str) -> None:
    """From here on the group's messages are this axis'."""
    _names[group] = axis


def axis_of(group: Any) -> str:
    """The name of a group's axis; empty where it is no mesh's, or nobody has said."""
    named = _names.get(group)
    if named is not None:
        return named
    described = getattr(group, "group_desc", "")
    is_axis = described.startswith(_OF_A_MESH) and described != _OF_ALL_RANKS
    return described.removeprefix(_OF_A_MESH) if is_axis else ""


def detail(group: Any) -> dict[str, str]:
    """What an event of the group says of it."""
    axis = axis_of(group)
    return {"axis": axis} if axis else {}
