"""The table [kubernetes] of cluster.toml: what `dtcourse kubernetes` needs to know besides."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields
from typing import Any

from dtcourse.launch.cluster import names


@dataclass(frozen=True)
class Kubernetes:
    """Each field has the name that it has in the file.

    namespace:     None leaves it to kubectl
    image:         the container's, unless --image names one
    user:          the number of the user that the ranks run as; None takes the image's, which must not be root then
    pull_secrets:  Secrets with the password of the image's registry
    gpu:           the resource that stands for a GPU
    shared_memory: GB of /dev/shm per node, which counts as the node's memory
    claims:        {folder in the container: PersistentVolumeClaim}; "data:ro" is only read
    node_selector: {label: value} that a machine must have
    tolerations:   taints that the Pods do not mind, as kubectl writes them: key, key=value or key=value:NoSchedule
    priority:      a PriorityClass
    queue:         Kueue's LocalQueue, where the cluster has Kueue
    ttl_minutes:   how long an ended Job and its logs stay; None: until somebody deletes them
    runtime:       Kubeflow's ClusterTrainingRuntime of a TrainJob
    """

    namespace: str | None = None
    image: str | None = None
    user: int | None = None
    pull_secrets: list[str] = field(default_factory=list)
    gpu: str = "nvidia.com/gpu"
    shared_memory: float = 2
    claims: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[str] = field(default_factory=list)
    priority: str | None = None
    queue: str | None = None
    ttl_minutes: float | None = 24 * 60
    runtime: str = "torch-distributed"


def from_table(table: Any, source: str) -> Kubernetes:
    """The table as it stands in the file, checked. ValueError names what is wrong and what would be right."""
    if not isinstance(table, dict):
        raise ValueError(f"{source}: kubernetes is a table, [kubernetes]; got {table!r}")
    known = [f.name for f in fields(Kubernetes)]
    for name in table:
        if name not in known:
            raise ValueError(
                f"{source}: there is no setting {name!r} in [kubernetes]; known are {', '.join(known)}"
            )
    made = Kubernetes(**table)
    check(made, source)
    return made


def check(table: Kubernetes, source: str) -> None:
    """ValueError where a value could not stand in a manifest."""

    def require(name: str, right: bool, expected: str) -> None:
        if not right:
            raise ValueError(
                f"{source}: {name} in [kubernetes] is {expected}; got {getattr(table, name)!r}"
            )

    require("namespace", table.namespace is None or names.is_part(table.namespace), names.A_PART)
    require("image", table.image is None or names.is_image(table.image), names.AN_IMAGE)
    user = table.user
    require(
        "user",
        user is None or (_is_number(user, int) and user > 0),
        "a user's number above 0, which is root's",
    )
    secrets = _is_list(table.pull_secrets) and all(map(names.is_subdomain, table.pull_secrets))
    require("pull_secrets", secrets, f"a list of Secrets, each {names.A_SUBDOMAIN}")
    require("gpu", names.is_resource(table.gpu), 'a resource such as "nvidia.com/gpu"')
    size = table.shared_memory
    number = _is_number(size, int | float)
    require("shared_memory", number and 0.01 <= size < 1e6, "a number of GB, at least 0.01")
    require("claims", _are_claims(table.claims), 'a table such as {"/data" = "course-data:ro"}')
    selector = table.node_selector
    labels = isinstance(selector, dict) and all(
        names.is_key(key) and names.is_value(value) for key, value in selector.items()
    )
    require("node_selector", labels, 'a table of labels, such as {pool = "gpu"}')
    taints = _is_list(table.tolerations) and all(map(names.is_taint, table.tolerations))
    require("tolerations", taints, f"a list of taints, each {names.A_TAINT}")
    require(
        "priority", table.priority is None or names.is_subdomain(table.priority), names.A_SUBDOMAIN
    )
    require("queue", table.queue is None or names.is_part(table.queue), names.A_PART)
    kept = table.ttl_minutes
    require(
        "ttl_minutes",
        kept is None or (_is_number(kept, int | float) and 0 <= kept < 1e6),
        "a number of minutes",
    )
    require("runtime", names.is_subdomain(table.runtime), names.A_SUBDOMAIN)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_claims(claims: Any) -> bool:
    """Each folder is mounted once and below no other one, and /dev/shm is ours."""
    if not isinstance(claims, dict) or not all(map(names.is_folder, claims)):
        return False
    folders = [f"{folder.rstrip('/')}/" for folder in claims] + ["/dev/shm/"]
    apart = not any(one.startswith(other) for one, other in itertools.permutations(folders, 2))
    return apart and all(
        isinstance(claim, str) and names.is_subdomain(claim.removesuffix(":ro"))
        for claim in claims.values()
    )
