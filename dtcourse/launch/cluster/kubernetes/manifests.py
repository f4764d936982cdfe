"""A Service, an Indexed Job, a TrainJob: plain data in Kubernetes' own words."""

from __future__ import annotations

from typing import Any

from dtcourse.launch import environment
from dtcourse.launch.cluster import names
from dtcourse.launch.cluster.kubernetes import pods
from dtcourse.launch.cluster.kubernetes.training import Training

PORT = 29500  # each Pod has its own address, so the same port for all
SERVICE = "dtcourse"  # the headless Service, of all trainings of a namespace
PATCHER = "dtcourse/kubernetes"  # whose changes of Kubeflow's runtime these are
OURS = {"app.kubernetes.io/part-of": SERVICE}  # the label by which it knows their Pods

Manifest = dict[str, Any]


def service(training: Training) -> Manifest:
    """The headless Service: no address of its own, only a name for each Pod of a Job, as NAME-0.dtcourse."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(training, SERVICE),
        "spec": {
            "clusterIP": "None",
            "selector": dict(OURS),
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
    where = {"MASTER_ADDR": f"{training.name}-0.{SERVICE}", "MASTER_PORT": str(PORT)}
    table = settings.kubernetes
    container = {
        "name": "ranks",
        "image": training.image,
        "command": command,
        "env": _variables(where | _environment(training)),
        "resources": pods.resources(settings, training.ranks_per_node),
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *pods.claimed_folders(table),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    shared = {"medium": "Memory", "sizeLimit": pods.size(table.shared_memory)}
    pod = {
        "subdomain": SERVICE,
        "restartPolicy": "Never",
        # Counted from the moment a machine has the Pod: the image's way there counts, waiting for the machine not.
        "activeDeadlineSeconds": settings.minutes * 60,
        # Each Service of the namespace would become variables: one called master, a MASTER_PORT of its own.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": pods.security(table),
        **pods.placement(table),
        "containers": [container],
        # Ranks of one node, and the workers of a data loader, talk through /dev/shm, which is small by default.
        "volumes": [{"name": "shared-memory", "emptyDir": shared}, *pods.claimed_volumes(table)],
    }
    if table.priority is not None:
        pod["priorityClassName"] = table.priority
    failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}
    evicted = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": training.nodes,
        "parallelism": training.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [failed, evicted]},
        "template": {"metadata": {"labels": dict(OURS)}, "spec": pod},
    }
    if settings.wait_minutes is not None:
        # The Job's own clock runs while its Pods wait for a machine; it stands while Kueue holds the Job back.
        spec["activeDeadlineSeconds"] = round((settings.wait_minutes + settings.minutes) * 60)
    if table.ttl_minutes is not None:
        spec["ttlSecondsAfterFinished"] = round(table.ttl_minutes * 60)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(training, training.name, queued=True),
        "spec": spec,
    }


def train_job(training: Training) -> Manifest:
    """Kubeflow's TrainJob (Trainer 2.2 or newer).

    What a Job says of Pods, here the runtime says: shared memory, users, what happens when a Pod fails, priority, how
    long it stays. Claims, machines and secrets are patched into the runtime, whose Job and container Kubeflow calls
    `node`. Kubeflow knows no clock of Pods, so the time limit covers the wait for machines too.
    """
    _check_host(training, f"{training.name}-node-0-{training.nodes - 1}")
    settings, table = training.settings, training.settings.kubernetes
    minutes = settings.minutes + (settings.wait_minutes or 0)
    made: Manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(training, training.name, queued=True),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": table.runtime,
            },
            "activeDeadlineSeconds": round(minutes * 60),
            "trainer": {
                "image": training.image,
                # torchrun takes the number of nodes, its own and where they meet from Kubeflow's variables.
                "command": ["torchrun", *_waiting(training), *_what_torchrun_runs(training)],
                "env": _variables(_environment(training)),
                "numNodes": training.nodes,
                "numProcPerNode": training.ranks_per_node,
                "resourcesPerNode": pods.resources(settings, training.ranks_per_node),
            },
        },
    }
    changed: Manifest = pods.placement(table)
    if table.claims:
        changed["volumes"] = pods.claimed_volumes(table)
        changed["containers"] = [{"name": "node", "volumeMounts": pods.claimed_folders(table)}]
    if table.claims or table.user is not None:
        changed["securityContext"] = pods.security(table)
    if changed:
        node = {"name": "node", "template": {"spec": {"template": {"spec": changed}}}}
        patch = {"template": {"spec": {"replicatedJobs": [node]}}}
        made["spec"]["runtimePatches"] = [{"manager": PATCHER, "trainingRuntimeSpec": patch}]
    return made


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


def _metadata(training: Training, name: str, queued: bool = False) -> Manifest:
    metadata: Manifest = {"name": name}
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
