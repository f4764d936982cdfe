"""What Pods of a training need of their cluster, as parts of a manifest: resources, folders, machines, a user.

Here is what a Job's Pods and a TrainJob's have in common. Settings are cluster.toml's; each function returns plain
data in Kubernetes' own words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dtcourse.launch.cluster.kubernetes_table import Kubernetes
from dtcourse.launch.cluster.settings import Settings

# The user of the course's own image, and so the group that may write to a claim unless `user` says another.
COURSE_USER = 1000

Part = dict[str, Any]


def resources(settings: Settings, ranks: int) -> Part:
    """What a Pod with so many ranks asks for, and gets no more of.

    A rank has a GPU of its own or shares one, and never two: with fewer ranks than gpus_per_node the others are left.
    """
    amounts = {"cpu": str(settings.cpus_per_rank * ranks)}
    if settings.memory_per_node is not None:
        amounts["memory"] = size(settings.memory_per_node)
    if settings.gpus_per_node:
        amounts[settings.kubernetes.gpu] = str(min(settings.gpus_per_node, ranks))
    return {"requests": dict(amounts), "limits": dict(amounts)}


def size(gigabytes: float) -> str:
    """A quantity of Kubernetes', of the size that Slurm makes of the same setting."""
    return f"{round(gigabytes * 1024)}Mi"


def claimed_volumes(table: Kubernetes) -> list[Part]:
    """Each PersistentVolumeClaim once, however many folders show it."""
    claims = dict.fromkeys(claim.removesuffix(":ro") for claim in table.claims.values())
    return [
        {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        for volume, claim in zip(_volume_names(claims), claims, strict=True)
    ]


def claimed_folders(table: Kubernetes) -> list[Part]:
    """Where the container sees each claim."""
    claims = dict.fromkeys(claim.removesuffix(":ro") for claim in table.claims.values())
    volumes = dict(zip(claims, _volume_names(claims), strict=True))
    return [
        {"name": volumes[claim.removesuffix(":ro")], "mountPath": folder}
        | ({"readOnly": True} if claim.endswith(":ro") else {})
        for folder, claim in table.claims.items()
    ]


def placement(table: Kubernetes) -> Part:
    """On which machines the Pods may lie, and the password of the image's registry."""
    part: Part = {}
    if table.node_selector:
        part["nodeSelector"] = dict(table.node_selector)
    if table.tolerations:
        part["tolerations"] = [_toleration(taint) for taint in table.tolerations]
    if table.pull_secrets:
        part["imagePullSecrets"] = [{"name": secret} for secret in table.pull_secrets]
    return part


def security(table: Kubernetes) -> Part:
    """Who the ranks are. A claim's files get their group, without which a user that is not root could not write."""
    part: Part = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if table.user is not None:
        part["runAsUser"] = table.user
    if table.claims:
        part["fsGroup"] = table.user or COURSE_USER
        # Else each start changes the group of every file of a large data set.
        part["fsGroupChangePolicy"] = "OnRootMismatch"
    return part


def _volume_names(claims: Iterable[str]) -> list[str]:
    """A claim's name may have dots and 253 letters, a volume's not."""
    return [f"claim-{number}" for number, _ in enumerate(claims)]


def _toleration(taint: str) -> Part:
    rest, _, effect = taint.partition(":")
    key, equal, value = rest.partition("=")
    toleration = {"key": key, "operator": "Equal" if equal else "Exists"}
    if equal:
        toleration["value"] = value
    if effect:
        toleration["effect"] = effect
    return toleration
