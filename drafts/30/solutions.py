# %% [markdown] id=title
"""
# Exercises 30 · Planning at scale

A plan within a deadline, published runs to explain, a diagnosis of plans, and a decision that is run; each has a target in numbers. Run the cell under your answer: it says what is right, and asks a question about what is not yet.
What you need is in [lesson 30](../lessons/30-extreme-scale.ipynb), and what a job that fails keeps of its time in [lesson 25b](../lessons/25b-detect-and-recover.ipynb); `dtcourse check 30` runs all checks at once.
"""

# %% id=imports
import math

import numpy as np

from dtcourse.course import check

# %% [markdown] id=plan
"""
## 1 · The cheapest plan in time

Several plans train the same model. A plan is a dict: `"devices"`; `"batch"`, tokens of a step; `"seconds"` of a step; `"state"`, bytes that all devices together have to save. The job is another dict:

- `"steps"`: to the loss, if the batch were so large that its gradient had no noise; `"critical"`: the critical batch, in tokens;
- `"lifetime"`: seconds from one failure to the next of a single device, which come at random;
- `"storage"`: bytes per second that the storage takes from all devices together; training stands still for a save;
- `"restart"`: seconds from a failure until training goes on from the last save;
- `"days"`: the deadline.

Return the number of the plan (from 0) that costs the fewest GPU-days of those that end in time, and the seconds of training between its saves.

**Target:** on 24 jobs of 5 to 8 plans, drawn anew each time: in time, at most 1.005 times the GPU-days of the cheapest one, and with your interval at least 0.99 of the goodput of the best interval.

An answer that uses `dtcourse.fault_tolerance` or `dtcourse.planner` is refused.
"""

# %% id=plan-answer solution=cheapest_plan
def cheapest_plan(plans, job):
    """(the number of the plan, the seconds between two of its saves)."""
    ### BEGIN SOLUTION
    found = []
    for number, plan in enumerate(plans):
        mtbf = job["lifetime"] / plan["devices"]
        save = plan["state"] / job["storage"]

        def goodput(every, mtbf=mtbf, save=save):
            """Each save that is reached before the next failure keeps one interval's work."""
            first = job["restart"] + every + save
            reached = math.exp(-first / mtbf) / -math.expm1(-(every + save) / mtbf)
            return every / mtbf * reached

        young = math.sqrt(2 * save * mtbf)
        every = max((young * 1.01**n for n in range(-120, 121)), key=goodput)
        steps = job["steps"] * (1 + job["critical"] / plan["batch"])
        days = steps * plan["seconds"] / goodput(every) / 86_400
        found.append((plan["devices"] * days, days, number, every))
    in_time = [one for one in found if one[1] <= job["days"]]
    _, _, number, every = min(in_time)
    return number, every
    ### END SOLUTION

# %% id=plan-try
# Try it here: the second plan has twice the devices, and ends in time.
# plans = [{"devices": 512, "batch": 4e6, "seconds": 20.0, "state": 2e12},
#          {"devices": 1024, "batch": 4e6, "seconds": 11.0, "state": 2e12}]
# job = {"steps": 2e4, "critical": 4e6, "lifetime": 1.8e8, "storage": 1e11, "restart": 600.0,
#        "days": 8}
# cheapest_plan(plans, job)

# %% id=plan-check check=check_cheapest_plan points=9
check("cheapest_plan", cheapest_plan)

# %% [markdown] id=explain
"""
## 2 · Explain published runs

MPT's authors have published the seconds of steps with many lengths of sequences (eight A100 each). Here are some of one model's runs: `runs` is a list of `(length, tokens, seconds)`: tokens of a sequence; tokens of a step, over all sequences; seconds of a step. They come in any order. Of another run of the same model only its `length` and its `tokens` are told. Its sequences are four times as long as the longest of `runs`.

Explain the runs by what a step's work is made of: return (a) the seconds of the other run's step; (b) the length from which on more than half of a token's time is of the part that grows with the length.

**Target:** for 6 models, whose runs come in any order, some of them left out anew each time: (a) within 8 % of what was published; (b) within 20 % of what all published runs of the model say.

An answer that uses `dtcourse.planner` or `dtcourse.simulator` is refused.
"""

# %% id=explain-answer solution=explain_runs
def explain_runs(runs, length, tokens):
    """(seconds of a step of this length and so many tokens, the length of equal parts)."""
    ### BEGIN SOLUTION
    lengths = np.array([one for one, _, _ in runs], dtype=float)
    per_token = np.array([seconds / all_of_them for _, all_of_them, seconds in runs])
    # Products take each token as long; attention looks at all tokens of its sequence.
    rows = np.stack([np.ones_like(lengths), lengths], axis=1)
    # Each run counts alike, whatever its length: errors are relative.
    ones = np.ones_like(per_token)
    found = np.linalg.lstsq(rows / per_token[:, None], ones, rcond=None)[0]
    alone, per_length = found.tolist()
    return tokens * (alone + per_length * length), alone / per_length
    ### END SOLUTION

# %% id=explain-try
# Try it here: a token takes 1 ms, and 1 µs for each token of its sequence.
# explain_runs([(1000, 1e5, 200.0), (2000, 1e5, 300.0)], 8000, 1e5)  # (900.0, 1000.0)

# %% id=explain-check check=check_explain_runs points=8
check("explain_runs", explain_runs)

# %% [markdown] id=diagnose
"""
## 3 · Which plan is wrong, and how?

A study lists plans for a model. `model` is a dict: `"parameters"`, `"layers"`, `"width"` (of all heads together), `"length"` of a sequence, `"peak"` (operations per second of a device), `"lifetime"` (hours from one failure to the next of a single device). A plan is a dict, too:

- what was chosen: `"devices"`, `"data"`, `"stages"`, `"tensor"` (their product is the devices), `"zero"` (the stage over the data ranks), `"sequences"` of a step over all devices, `"recomputed"` (whether blocks compute all their activations twice);
- what was measured: `"seconds"` of a step;
- what the study works out: `"tokens per second"` of all devices, `"mfu"` (by the convention of PaLM, as everywhere in the course: all pairs of tokens count), `"states"` (bytes of the model's states on a device: bfloat16 with float32 master copies, Adam), `"hours between failures"` of the job.

At most one plan of a study is wrong. Return what is wrong, and the number of the plan:

- `("healthy", None)`;
- `("batch of a rank", n)`: its batch was taken for the batch of each data rank;
- `("counted twice", n)`: its MFU counts what is computed twice;
- `("other peak", n)`: its MFU is of twice the device's peak;
- `("other stage", n)`: its states are those of another ZeRO stage;
- `("failures of a node", n)`: a failure of a node of 8 was taken for one of a device, or the other way round.

**Target:** 30 of 30 studies of 3 to 6 plans, drawn anew each time, and shuffled.

An answer that uses `dtcourse.planner`, `dtcourse.simulator` or `dtcourse.fault_tolerance` is refused.
"""

# %% id=diagnose-answer solution=diagnose_plan
def diagnose_plan(model, plans):
    """Returns what is wrong, and the number of the plan, or None."""
    ### BEGIN SOLUTION
    P = model["parameters"]
    for number, plan in enumerate(plans):

        def off(name, right, plan=plan):
            return plan[name] / right

        rate = plan["sequences"] * model["length"] / plan["seconds"]
        if abs(off("tokens per second", rate) - 1) > 0.02:
            return "batch of a rank", number
        each = 6 * P + 12 * model["layers"] * model["width"] * model["length"]
        mfu = off("mfu", rate * each / (plan["devices"] * model["peak"]))
        if mfu > 1.02:
            return "counted twice", number
        if mfu < 0.98:
            return "other peak", number
        own, data = P / (plan["stages"] * plan["tensor"]), plan["data"]
        whole = [2, 2, 12]  # parameters, gradients, the optimizer's: shared from the last one on
        stage = plan["zero"]
        states = own * (sum(whole[: 3 - stage]) + sum(whole[3 - stage :]) / data)
        if abs(off("states", states) - 1) > 0.02:
            return "other stage", number
        hours = model["lifetime"] / plan["devices"]
        if abs(off("hours between failures", hours) - 1) > 0.02:
            return "failures of a node", number
    return "healthy", None
    ### END SOLUTION

# %% id=diagnose-try
# Try it here: four devices, one plan, all as it should be.
# MODEL = {"parameters": 1e9, "layers": 24, "width": 2048, "length": 2048, "peak": 1e14,
#          "lifetime": 1e4}
# PLAN = {"devices": 4, "data": 4, "stages": 1, "tensor": 1, "zero": 1, "sequences": 64,
#         "recomputed": False, "seconds": 6.554, "tokens per second": 2e4, "mfu": 0.36,
#         "states": 7e9, "hours between failures": 2500.0}
# diagnose_plan(MODEL, [PLAN])  # ("healthy", None)

# %% id=diagnose-check check=check_diagnose_plan points=10
check("diagnose_plan", diagnose_plan)

# %% [markdown] id=choose
"""
## 4 · How many devices, and which batch?

A model has to be trained within a number of days, and a device is paid by the day. More devices make a step shorter, and not in proportion. A larger batch saves steps, and not in proportion. And all devices together fail the more often, the more there are. You know none of these figures.

`measure(devices, sequences)` plans the training with so many devices and so many sequences per step, and returns a tuple of one number: days. At most 26 of the 56 choices may be measured. Return the choice that costs the fewest GPU-days of those that end in time: `(devices, sequences)`.

**Target:** on 6 jobs, drawn anew each time, in time, and at most 1.01 times the GPU-days of the best choice.

An answer that uses `dtcourse.fault_tolerance` or `dtcourse.planner` is refused.
"""

# %% id=choose-answer solution=choose_size
def choose_size(measure, sizes, batches, deadline):
    """measure(devices, sequences) -> (days,); sizes, batches: what is possible, rising; days."""
    ### BEGIN SOLUTION
    seen, at = {}, len(batches) // 2

    def days(devices, place):
        if (devices, place) not in seen:
            seen[devices, place] = measure(devices, batches[place])[0]
        return seen[devices, place]

    # More devices cost more GPU-days, whatever the batch: the fewest in time are the cheapest.
    for devices in sizes:
        while True:
            near = [place for place in (at - 1, at, at + 1) if 0 <= place < len(batches)]
            best = min(near, key=lambda place, devices=devices: days(devices, place))
            if best == at:
                break
            at = best
        if days(devices, at) <= deadline:
            return devices, batches[at]
    return sizes[-1], batches[at]
    ### END SOLUTION

# %% id=choose-try
# Try it here: what your function measures on a first job, in days, and what it chooses.
# from dtcourse.course.judging import trials
# trials.practise("choose_size", choose_size)

# %% id=choose-check check=check_choose_size points=10
check("choose_size", choose_size)
