"""Kubernetes: manifests that run `-m dtcourse.launch file.py:function` on several Pods, from the same cluster.toml.

A node of ours is a Pod, in which torchrun starts that node's ranks. Two ways to get equal Pods that know their number:

    job          the cluster's own: an Indexed Job, whose Pods are numbered, and a headless Service, which gives each
                 a name. We tell torchrun its number, and Pod 0's name.
    train_job    Kubeflow's TrainJob, where its Trainer is installed. It makes the same of a few lines, and tells
                 torchrun itself, in variables that begin with PET_.

Neither places its Pods all at once or not at all (gang scheduling): where there is room for one Pod of two, that one
waits for the other, and keeps its GPUs meanwhile. `queue` in cluster.toml hands both kinds to Kueue, which starts them
when there is quota for all; a TrainJob gets it from its runtime too (podGroupPolicy).

A group of ranks cannot go on without one of them, and a Pod that starts again finds nobody to join. So a Job ends
when its first Pod fails, for whatever reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dtcourse.launch import environment, options
from dtcourse.launch import target as targets
from dtcourse.launch.cluster import names
from dtcourse.launch.cluster.settings import Settings, check_kubernetes

PORT = 29500  # each Pod has its own address, so the same port for all

Manifest = dict[str, Any]


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
    name:      of what is made in the cluster; None takes the function's
    """
    source, table = settings.source, settings.kubernetes
    options.whole_number("world_size", world_size, "the number of ranks to start")
    options.whole_number("nodes", nodes, "the number of nodes")
    nodes = settings.nodes_for(world_size, nodes)
    options.known_backend(backend)
    check_kubernetes(table, source)
    file, _, function = target.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier() or file.startswith("-"):
        raise ValueError(f"the target reads file.py:function; got {target!r}")
    words = tuple(arguments)
    for word in (target, *words):
        if not isinstance(word, str) or not word.isprintable():
            raise ValueError(f"{word!r} cannot stand in a command: it is no printable text")
    targets.arguments(words)
    chosen = image or table.image
    if chosen is None:
        raise ValueError(
            f"no image was named: give --image, or write image in [kubernetes] of {source}"
        )
    if not names.is_image(chosen):
        raise ValueError(f"image is {names.AN_IMAGE}; got {chosen!r}")
    called = function.strip("_").replace("_", "-").lower() if name is None else name
    if not names.is_label(called):
        raise ValueError(f"name is {names.A_LABEL}; got {called!r}")
    space = namespace or table.namespace
    if space is not None and not names.is_part(space):
        raise ValueError(f"namespace is {names.A_PART}; got {space!r}")
    memory = settings.memory_per_node
    if memory is not None and table.shared_memory >= memory:
        raise ValueError(
            f"{table.shared_memory:g} GB of shared memory leave a node with {memory:g} GB nothing: change "
            f"shared_memory in [kubernetes] or memory_per_node, in {source}"
        )
    return Training(
        settings, target, words, world_size, nodes, chosen, called, space, backend
    )  # fmt: skip


def service(training: Training) -> Manifest:
    """The headless Service: no address of its own, only a name for each Pod of the Job, as NAME-0.NAME."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(training),
        "spec": {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": training.name},
            # The Pods look for Pod 0 before anything in it could be called ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def job(training: Training) -> Manifest:
    """The Indexed Job: one Pod per node, with its number in JOB_COMPLETION_INDEX. Needs `service` beside it."""
    _check_host(training, f"{training.name}-{training.nodes - 1}")
    settings = training.settings
    # Kubernetes itself puts the values in for $(...), in a command as in a variable.
    command = [
        *("torchrun", "--nnodes", str(training.nodes)),
        *("--nproc-per-node", str(training.ranks_per_node)),
        *("--node-rank", "$(JOB_COMPLETION_INDEX)"),
        *("--master-addr", "$(MASTER_ADDR)", "--master-port", "$(MASTER_PORT)"),
        *_waiting(training),
        *_what_torchrun_runs(training),
    ]
    where = {"MASTER_ADDR": f"{training.name}-0.{training.name}", "MASTER_PORT": str(PORT)}
    container = {
        "name": "ranks",
        "image": training.image,
        "command": command,
        "env": _variables(where | _environment(training)),
        "resources": _resources(training),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    shared = {"medium": "Memory", "sizeLimit": _size(settings.kubernetes.shared_memory)}
    pod = {
        "subdomain": training.name,
        "restartPolicy": "Never",
        # Each Service of the namespace would become variables: one called master, a MASTER_PORT of its own.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        # Ranks of one node, and the workers of a data loader, talk through /dev/shm, which is small by default.
        "volumes": [{"name": "shared-memory", "emptyDir": shared}],
    }
    failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}
    evicted = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(training, queued=True),
        "spec": {
            "completionMode": "Indexed",
            "completions": training.nodes,
            "parallelism": training.nodes,
            "activeDeadlineSeconds": settings.minutes * 60,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [failed, evicted]},
            "template": {"spec": pod},
        },
    }


def train_job(training: Training) -> Manifest:
    """Kubeflow's TrainJob (Trainer 2.2 or newer).

    What a Job says of Pods, here the runtime says: shared memory, users, what happens when a Pod fails.
    """
    _check_host(training, f"{training.name}-node-0-{training.nodes - 1}")
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(training, queued=True),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": training.settings.kubernetes.runtime,
            },
            "activeDeadlineSeconds": training.settings.minutes * 60,
            "trainer": {
                "image": training.image,
                # torchrun takes the number of nodes, its own and where they meet from Kubeflow's variables.
                "command": ["torchrun", *_waiting(training), *_what_torchrun_runs(training)],
                "env": _variables(_environment(training)),
                "numNodes": training.nodes,
                "numProcPerNode": training.ranks_per_node,
                "resourcesPerNode": _resources(training),
            },
        },
    }


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """The manifests as one file for kubectl.

    Whatever some reader of YAML might take for something else than text stands between quotation marks: PyYAML alone
    would write a learning rate of "1e-3" without, and Go's YAML, Kubernetes' own, reads that as a number.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        looks_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9./-]*", value) is not None
        plain = looks_plain and value.lower() not in _WORDS_OF_YAML
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, None if plain else '"')

    Dumper.add_representer(str, text)
    # The same list twice in one manifest is written twice, not once and a reference to it.
    Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
    return yaml.dump_all(
        list(manifests), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100_000
    )


_WORDS_OF_YAML = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}


def _waiting(training: Training) -> tuple[str, str]:
    """A Pod may start long before another: it waits for as long as the training may last, not torchrun's 10 minutes."""
    return "--rdzv-conf", f"timeout={training.settings.minutes * 60}"


def _what_torchrun_runs(training: Training) -> list[str]:
    words = ["-m", "dtcourse.launch"]
    words += ["--backend", training.backend] if training.backend else []
    # An image may show the GPUs of its machine to a Pod that has asked for none.
    words += [] if training.settings.gpus_per_node else ["--device", "cpu"]
    # What is written arrives: Kubernetes reads $$ as a $ that is only that, and so does torchrun after it, which
    # would put a number in for ${local_rank}.
    return words + [word.replace("$", "$$$$") for word in (training.target, *training.arguments)]


def _environment(training: Training) -> dict[str, str]:
    settings = training.settings
    variables = {
        "OMP_NUM_THREADS": str(settings.cpus_per_rank),
        "PYTHONUNBUFFERED": "1",  # `kubectl logs` shows a line when it is printed
    }
    if settings.interface:
        variables |= dict.fromkeys(environment.INTERFACES, settings.interface)
    return variables


def _variables(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _resources(training: Training) -> dict[str, dict[str, str]]:
    """What a node asks for, and gets no more of."""
    settings = training.settings
    amounts = {"cpu": str(settings.cpus_per_rank * training.ranks_per_node)}
    if settings.memory_per_node is not None:
        amounts["memory"] = _size(settings.memory_per_node)
    if settings.gpus_per_node:
        amounts[settings.kubernetes.gpu] = str(settings.gpus_per_node)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _size(gigabytes: float) -> str:
    """A quantity of Kubernetes', of the size that Slurm makes of the same setting."""
    return f"{round(gigabytes * 1024)}Mi"


def _metadata(training: Training, queued: bool = False) -> Manifest:
    metadata: Manifest = {"name": training.name}
    if training.namespace is not None:
        metadata["namespace"] = training.namespace
    queue = training.settings.kubernetes.queue
    if queued and queue is not None:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    return metadata


def _check_host(training: Training, host: str) -> None:
    if not names.is_part(host):
        raise ValueError(
            f"the last Pod would be called {host}, which is {len(host)} letters of at most 63: choose a shorter "
            f"name than {training.name!r}"
        )
