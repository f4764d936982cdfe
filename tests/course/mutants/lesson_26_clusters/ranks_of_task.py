"""Answers to ranks_of_task: see test_exercises.py."""

_RANK = '"RANK": sum(tasks[:node]) + local,'
_LOCAL = '"LOCAL_WORLD_SIZE": tasks[node],'
_HEAD = '"MASTER_ADDR": head[1] + first + head[3],'

# The lesson's, without the part that asks Slurm.
_LESSONS = """
def ranks_of_task(told):
    import subprocess

    nodes = told["SLURM_STEP_NODELIST"]
    asked = ["scontrol", "show", "hostnames", nodes]
    first = subprocess.run(asked, capture_output=True, text=True).stdout.split()[0]
    return {"RANK": told["SLURM_PROCID"], "LOCAL_RANK": told["SLURM_LOCALID"], "MASTER_ADDR": first}
"""

NAMED = "the task's number is the rank"

MUTANTS = [
    ("the lesson's own: it asks Slurm", "subprocess", _LESSONS),
    ("the task's number is the rank", "Ranks of a node are to be neighbours", ((_RANK, '"RANK": told["SLURM_PROCID"],'),)),
    ("node times its tasks", "4, 4, 3", ((_RANK, '"RANK": node * tasks[node] + local,'),)),
    ("all nodes have as many as the first", "how many tasks has this task's node", ((_LOCAL, '"LOCAL_WORLD_SIZE": tasks[0],'),)),
    ("counts are not repeated", "it raised IndexError", (("tasks += [int(count)] * int(times or 1)", "tasks += [int(count)]"),)),
    ("an exported address stays", "that somebody exported", ((_HEAD, '"MASTER_ADDR": told.get("MASTER_ADDR") or head[1] + first + head[3],'),)),
    ("zeros are lost", "Numbers keep their zeros", (('first = re.split("[-,]", head[2])[0] if head[2] else ""', 'first = str(int(re.split("[-,]", head[2])[0])) if head[2] else ""'),)),
    ("text after the bracket is lost", "text may follow the bracket", ((_HEAD, '"MASTER_ADDR": head[1] + first,'),)),
    ("the last node", "Who says so", (('first = re.split("[-,]", head[2])[0]', 'first = re.split("[-,]", head[2])[-1]'),)),
    ("numbers, not text", "what stands in an environment is text", (("{name: str(value) for", "{name: value for"),)),
    ("no group rank", "GROUP_RANK not set", (('        "GROUP_RANK": node,\n', ""),)),
    ("the world is one node's", "WORLD_SIZE is", (('"WORLD_SIZE": sum(tasks),', '"WORLD_SIZE": tasks[node],'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "all names are written out",
        """
def ranks_of_task(told):
    groups, depth, word = [], 0, ""
    for letter in told["SLURM_STEP_NODELIST"] + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            groups.append(word)
            word = ""
        else:
            word += letter
    names = []
    for group in groups:
        before, bracket, rest = group.partition("[")
        if not bracket:
            names.append(group)
            continue
        inside, _, after = rest.partition("]")
        for part in inside.split(","):
            low, _, high = part.partition("-")
            for number in range(int(low), int(high or low) + 1):
                names.append(before + str(number).zfill(len(low)) + after)
    counts = []
    for part in told["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, times = part.partition("(x")
        counts.extend([int(count)] * int(times.rstrip(")") or 1))
    node = int(told["SLURM_NODEID"])
    rank = int(told["SLURM_LOCALID"])
    for count in counts[:node]:
        rank += count
    return dict(
        RANK=f"{rank}", WORLD_SIZE=f"{sum(counts)}", LOCAL_RANK=told["SLURM_LOCALID"],
        LOCAL_WORLD_SIZE=f"{counts[node]}", GROUP_RANK=told["SLURM_NODEID"], MASTER_ADDR=names[0],
    )
""",
    ),
    (
        "more variables than asked for",
        (('        "GROUP_RANK": node,\n', '        "GROUP_RANK": node,\n        "GROUP_WORLD_SIZE": len(tasks),\n'),),
    ),
]  # fmt: skip

NOTHING = [("what Slurm said", "\ndef ranks_of_task(told):\n    return told\n")]
