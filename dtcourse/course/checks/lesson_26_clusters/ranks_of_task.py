"""PyTorch's variables from Slurm's, where nodes have different numbers of tasks and names come in brackets."""

from __future__ import annotations

from itertools import accumulate

from dtcourse.course.judging import Answer, Exercise, call_each, require

RANKS = Exercise(
    "ranks_of_task",
    lesson="26",
    title="Ranks from what a task is told",
    takes=("ranks_of_task",),
    target="all tasks of 7 jobs, by block and by plane, without asking Slurm",
    forbidden=("submitit", "subprocess", "dtcourse.launch"),
)

Job = tuple[str, list[str], str, list[int]]  # node list, its names, tasks per node, as numbers
EQUAL: tuple[Job, ...] = (
    ("n[1-2]", ["n1", "n2"], "2(x2)", [2, 2]),
    ("gpu7", ["gpu7"], "8", [8]),
    ("a1,b1", ["a1", "b1"], "1(x2)", [1, 1]),
)
NAMES: tuple[Job, ...] = (
    ("gpu[01-03,07]", ["gpu01", "gpu02", "gpu03", "gpu07"], "1(x4)", [1] * 4),
    ("rack[8-10]-ib,login", ["rack8-ib", "rack9-ib", "rack10-ib", "login"], "2(x4)", [2] * 4),
)
UNEQUAL: tuple[Job, ...] = (
    ("n[1-3]", ["n1", "n2", "n3"], "4(x2),3", [4, 4, 3]),
    ("c[098-101],d5", ["c098", "c099", "c100", "c101", "d5"], "1,3(x2),2(x2)", [1, 3, 3, 2, 2]),
)
KEYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")


def tasks_of(job: Job, cyclic: bool = False) -> list[tuple[dict[str, str], dict[str, str]]]:
    """(what Slurm tells a task, what PyTorch must be told) of each task. cyclic: task 0 on node 0, task 1 on node 1,
    ...
    """
    nodes, names, written, counts = job
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    if cyclic:
        places.sort(key=lambda place: (place[1], place[0]))
    found = []
    for procid, (node, local) in enumerate(places):
        told = {
            "SLURM_JOB_ID": "4711",
            "SLURM_PROCID": str(procid),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": written,
            "MASTER_ADDR": "exported-by-somebody",
        }
        first = list(accumulate(counts, initial=0))[node]
        rank = first + local  # ranks of a node are neighbours, whatever the tasks' numbers
        wanted = (rank, sum(counts), local, counts[node], node, names[0])
        found.append((told, dict(zip(KEYS, map(str, wanted), strict=True))))
    return found


def _require(answer: Answer, jobs: tuple[Job, ...], hint: str, cyclic: bool = False) -> None:
    pairs = [pair for job in jobs for pair in tasks_of(job, cyclic)]
    for (told, right), got in zip(
        pairs, call_each(answer, [(told,) for told, _ in pairs]), strict=True
    ):
        where = (
            f"task {told['SLURM_PROCID']} on {told['SLURM_STEP_NODELIST']} "
            f"with {told['SLURM_STEP_TASKS_PER_NODE']} tasks"
            + (", dealt in turn" if cyclic else "")
        )
        require(isinstance(got, dict), f"Return a dict of PyTorch's variables; got {got!r}.")
        missing = [key for key in KEYS if key not in got]
        require(not missing, f"{where}: {', '.join(missing)} not set.")
        for key in KEYS:
            require(
                isinstance(got[key], str),
                f"{where}: {key} is {got[key]!r}; what stands in an environment is text.",
            )
            require(
                got[key] == right[key],
                f"{where}: {key} is {got[key]}, and should be {right[key]}. {hint}",
            )


@RANKS.check("equal nodes", points=2)
def check_equal(answer: Answer) -> None:
    """As in the lesson, and an address that somebody exported."""
    _require(
        answer, EQUAL, "Who says so: Slurm, or a variable that somebody exported before the job?"
    )


@RANKS.check("names in brackets", points=3)
def check_names(answer: Answer) -> None:
    """Padded numbers, several ranges, text after the bracket, several groups."""
    _require(
        answer,
        NAMES,
        "Which names does the list stand for? Numbers keep their zeros, and text may follow the bracket.",
    )


@RANKS.check("nodes with different numbers of tasks", points=3)
def check_unequal(answer: Answer) -> None:
    """4(x2),3: the local world size differs."""
    _require(answer, UNEQUAL, "4(x2),3 means 4, 4, 3: how many tasks has this task's node?")


@RANKS.check("tasks that were dealt to the nodes in turn", points=2)
def check_cyclic(answer: Answer) -> None:
    """--distribution=cyclic, and ranks that are to be neighbours all the same."""
    _require(
        answer,
        (EQUAL[0], UNEQUAL[0]),
        "Ranks of a node are to be neighbours: how many ranks have the nodes before this one?",
        cyclic=True,
    )
