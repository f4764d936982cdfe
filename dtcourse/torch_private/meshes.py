"""What the groups of a DeviceMesh say of themselves."""

from __future__ import annotations

from typing import Any

_OF_A_MESH = "mesh_"  # so torch begins the description of a group that it makes for an axis
_OF_ALL_RANKS = (
    "mesh_default"  # and so it describes the default group, taken for an axis over all ranks
)


def axis_of_mesh(group: Any) -> str:
    """The axis of a DeviceMesh for which torch has made a group; empty for any other one."""
    described = getattr(group, "group_desc", "")
    is_axis = described.startswith(_OF_A_MESH) and described != _OF_ALL_RANKS
    return described.removeprefix(_OF_A_MESH) if is_axis else ""
