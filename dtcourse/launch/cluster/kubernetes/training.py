"""A training on Kubernetes, checked before anything is made of it."""

from __future__ import annotations

import getpass
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from dtcourse.launch import options
from dtcourse.launch import target as targets
from dtcourse.launch.cluster import kubernetes_table, names
from dtcourse.launch.cluster.settings import Settings


@dataclass(frozen=True)
class Training:
    """One training, checked, as its manifests need to know it. `plan` makes one."""

    settings: Settings
    target: str
    arguments: tuple[str, ...]
    world_size: int
    nodes: int
    image: str
    name: str
    namespace: str | None
    backend: str | None

    @property
    def ranks_per_node(self) -> int:
        """The same on every node."""
        return self.world_size // self.nodes


def plan(
    settings: Settings,
    target: str,
    world_size: int,
    *,
    arguments: Sequence[str] = (),
    nodes: int = 1,
    image: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
    backend: str | None = None,
) -> Training:
    """Checks what was asked for, and fills in the rest from cluster.toml. ValueError says what to do instead.

    target:    file.py:function, as it lies in the image: from the image's own directory, or an absolute path
    arguments: of the function, as on a command line: --name value
    name:      of what is made in the cluster; None makes one of the function's, the user's and four digits
    """
    source, kubernetes = settings.source, settings.kubernetes
    world_size = options.whole_number("world_size", world_size, "the number of ranks to start")
    nodes = options.whole_number("nodes", nodes, "the number of nodes")
    nodes = settings.nodes_for(world_size, nodes, equal=True)
    options.known_backend(backend)
    kubernetes_table.check(kubernetes, source)
    file, _, function = target.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier() or file.startswith("-"):
        raise ValueError(f"the target reads file.py:function; got {target!r}")
    words = tuple(arguments)
    for word in (target, *words):
        if not isinstance(word, str) or not word.isprintable():
            raise ValueError(f"{word!r} cannot stand in a command: it is no printable text")
    targets.arguments(words)
    chosen = image or kubernetes.image
    if chosen is None:
        raise ValueError(
            f"no image was named: give --image, or write image in [kubernetes] of {source}"
        )
    if not names.is_image(chosen):
        raise ValueError(f"image is {names.AN_IMAGE}; got {chosen!r}")
    called = _own_name(function) if name is None else name
    if not names.is_label(called):
        raise ValueError(f"name is {names.A_LABEL}; got {called!r}")
    space = namespace or kubernetes.namespace
    if space is not None and not names.is_part(space):
        raise ValueError(f"namespace is {names.A_PART}; got {space!r}")
    memory = settings.memory_per_node
    if memory is not None and kubernetes.shared_memory >= memory:
        raise ValueError(
            f"{kubernetes.shared_memory:g} GB of shared memory leave a node with {memory:g} GB nothing: change "
            f"shared_memory in [kubernetes] or memory_per_node, in {source}"
        )
    return Training(
        settings, target, words, world_size, nodes, chosen, called, space, backend
    )  # fmt: skip


def _own_name(function: str) -> str:
    """step-ana-3f2a. Where the user has no name that a Pod could have, it is left out."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    of_function, of_user = (
        re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") for text in (function, user)
    )
    # Short enough for the longest name that Kubeflow makes of it, NAME-node-0-999.
    parts = (of_function[:26].rstrip("-"), of_user[:16].rstrip("-"), secrets.token_hex(2))
    return "-".join(parts if of_user else (parts[0], parts[2])) if of_function else ""
