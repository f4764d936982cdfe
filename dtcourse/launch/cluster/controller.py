"""What Slurm's controller says: which nodes there are, how a job is, why it waits; and how it is cancelled."""

from __future__ import annotations

import os
import re
import subprocess

from dtcourse.launch.cluster.settings import Settings
from dtcourse.plural import plural

# A job in one of these will not do anything any more.
OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
    "GONE",
}
# Why a job waits, in Slurm's words, where it waits for nothing that could come; and what to do.
NEVER = {
    "PartitionTimeLimit": "it asks for more time than its partition gives: lower `minutes` in cluster.toml",
    "DependencyNeverSatisfied": "the job that it depends on has not ended as it should (`dependency` under [options])",
    "PartitionConfig": "no node of its partition has so many CPUs, GPUs or so much memory: lower `ranks_per_node`, "
    "`cpus_per_rank`, `gpus_per_node` or `memory_per_node` in cluster.toml",
    "BadConstraints": "no node has what it asks for (`constraint`, `gres` under [options])",
    "InvalidAccount": "the account is none of this cluster's (`account` in cluster.toml)",
    "InvalidQOS": "the QOS is none of this cluster's (`qos` under [options])",
}


def partitions() -> list[str]:
    """The names of the cluster's partitions."""
    return sorted({word.rstrip("*") for word in _ask("sinfo", "--noheader", "--format=%P").split()})


def nodes_up(partition: str | None) -> list[str]:
    """The nodes of a partition (None: of the default one) that take jobs."""
    shown = _ask("sinfo", "--noheader", "--Node", "--format=%N %P %t").splitlines()
    found = set()
    for line in shown:
        node, where, state = line.split()
        chosen = where.rstrip("*") == partition if partition else where.endswith("*")
        if chosen and state.rstrip("~#!%@^-") in ("idle", "mix", "alloc", "comp"):
            found.add(node)
    return sorted(found)


def nodes_out(partition: str | None) -> dict[str, str]:
    """{node: its state, and what its administrator wrote} of those nodes of a partition that take no jobs."""
    shown = _ask("sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%E").splitlines()
    up, out = nodes_up(partition), {}
    for line in shown:
        node, where, state, why = line.split("|", 3)
        chosen = where.rstrip("*") == partition if partition else where.endswith("*")
        if chosen and node not in up:
            out[node] = state.rstrip("*~#$!%@^-") + (f" ({why})" if why != "none" else "")
    return out


def state_of(job: str, comment: str) -> tuple[str, str, str]:
    """(state, its nodes or "", why it waits) of the job with that number and that comment.

    The state is "GONE" where Slurm has forgotten it, or means another job by that number now.
    """
    asked = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%N|%r|%k")
    shown = _ask(*asked).splitlines()
    if shown:
        state, nodes, reason, said = shown[-1].split("|", 3)
    else:  # squeue shows a job that is over for a while only
        fields = details("job", job)
        names = ("JobState", "NodeList", "Reason", "Comment")
        state, nodes, reason, said = (fields.get(name, "") for name in names)
    return (state, nodes, reason) if said == comment else ("GONE", "", "")


def never_starts(job: str, nodes: int, reason: str) -> str:
    """What to do about a job of so many nodes that waits for ever; empty where it may still start.

    A limit per job does not change while the job waits (MaxWallDurationPerJob); those per user and per account do.
    """
    # Slurm says PartitionNodeLimit of nodes that are down, too, and PartitionConfig of too many nodes as well.
    if reason in ("PartitionNodeLimit", "PartitionConfig"):
        name = details("job", job).get("Partition", "")
        limits = details("partition", name)
        counts = [limits.get("TotalNodes", ""), limits.get("MaxNodes", "")]
        most = min((int(count) for count in counts if count.isdigit()), default=nodes)
        if nodes > most:
            return (
                f"it asks for {nodes} nodes, and partition {name} gives a job at most {most}: launch fewer ranks, "
                "raise `ranks_per_node`, or name another `partition` in cluster.toml"
            )
    if re.fullmatch(r"(QOS|Assoc)Max\w+PerJob(Limit)?", reason):
        return "it asks for more than one job may have: lower `minutes` or `ranks_per_node`, or launch fewer ranks"
    return NEVER.get(reason, "")


def waiting_or_running() -> list[tuple[str, ...]]:
    """All users' jobs that Slurm shows: (user, number, name, nodes, state, time it has waited or run, reason, comment).

    A pending job's time is that since its submission.
    """
    asked = ("squeue", "--noheader", "--array", "--format=%u|%i|%j|%D|%T|%M|%V|%r|%k")
    found: list[tuple[str, ...]] = []
    for line in _ask(*asked).splitlines():
        user, job, name, nodes, state, ran, submitted, reason, comment = line.split("|", 8)
        time = f"since {submitted}" if state == "PENDING" else ran
        found.append((user, job, name, nodes, state, time, reason, comment))
    return found


def details(kind: str, name: str) -> dict[str, str]:
    """What scontrol says of a job or a node, by its own field names; nothing of one that is not known."""
    words = _ask("scontrol", "--oneliner", "show", kind, name).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def lost_nodes(job: str, nodes: str) -> list[str]:
    """Those of a job's nodes that the cluster has lost."""
    shown = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T").splitlines()
    return sorted(
        {
            line.split()[0]
            for line in shown
            if line.split()[1].rstrip("*$~#!%@^-").startswith("down")
        }
    )


def names(nodes: str) -> list[str]:
    """The single names in Slurm's short form: n[1-2] is n1, n2."""
    return _ask("scontrol", "show", "hostnames", nodes).split() if nodes else []


def cancel(job: str) -> None:
    """Asks Slurm to end a job; nothing where it has ended."""
    _ask("scancel", job)


def _ask(*command: str) -> str:
    """What the command prints; nothing where it fails, which it does for a job that is not known any more."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(state: str, settings: Settings, job: str) -> str:
    """How a job ended, as a sentence's end."""
    if state == "TIMEOUT":
        return f"reached its time limit of {plural(settings.minutes, 'minute')} (`minutes` in cluster.toml)"
    if state == "OUT_OF_MEMORY":
        return "used more memory than it had asked for (`memory_per_node` in cluster.toml)"
    if state == "DEADLINE":
        return "was removed by Slurm, since it had waited too long to end before its deadline"
    if state == "CANCELLED":
        return "was cancelled"
    if state == "PREEMPTED":
        return "was ended for a job of higher priority"
    if state == "NODE_FAIL":
        return "lost a node"
    if state == "GONE":
        return f"is not known to Slurm any more (squeue --jobs={job})"
    return f"ended with state {state}"
