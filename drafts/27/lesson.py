# %% [markdown] id=title
"""
# 27 · Ranks that are not alike

Two old GPUs beside two new ones, a machine that is hot, a card with half the memory: not all ranks are alike. Equal shares of the work then make all of them as slow as the slowest one.
**The question of this lesson: how near do unequal ranks come to the time that their speed together allows, and when is the slow one better left out?**

**You will be able to**

- give ranks unequal batches, and weight their gradients so that the step is still one process's;
- choose shares by measured speed and by memory, and let them follow a speed that changes, without flapping;
- say from which step on a balance is quicker than leaving the slow rank out;
- move layers of a pipeline between ranks, and choose a layout for ranks that are not alike;
- hand out independent tasks so that a slow rank, or a dead one, holds up nobody.

**Know first:** [lesson 06b](../lessons/06b-ddp-in-practice.ipynb) (DDP), [lesson 09](../lessons/09-stragglers-and-async.ipynb) (stragglers; a rank's own time), [lesson 18](../lessons/18-pipeline-schedules.ipynb) (1F1B).

**Takes:** about 90 minutes without the exercises, an estimate. About «n» seconds to run. **Needs:** two CPU cores.
"""

# %% id=parameters tags=parameters
WORLD_SIZE = 4  # ranks, 3 or more; one of them is slow
DEVICE = (
    None  # None: what this machine has; or "cpu", "cuda". Times here are emulated and need neither
)
BACKEND = None  # None: NCCL where every rank has its own GPU, else gloo
CLUSTER = None  # None: this machine; or "slurm": launches that are not emulated run as jobs of that cluster
SLOWER = 3.0  # by which factor the slow rank is slower

# %% id=question hidden
from dtcourse import plots
from dtcourse.launch import use_cluster

use_cluster(CLUSTER)

P = max(3, WORLD_SIZE)
factors = [1 + 0.25 * n for n in range(21)]
plots.curves(
    {
        "equal shares": (factors, [f / P for f in factors]),
        "the slow rank left out": (factors, [1 / (P - 1) for _ in factors]),
        "the ideal: all work / all speed": (factors, [1 / (P - 1 + 1 / f) for f in factors]),
    },
    xlabel="how many times slower one rank is", ylabel="time of a step / one fast rank's for all of it",
    title=f"{P} ranks, one of them slow: work alone, no messages",
)  # fmt: skip

# %% [markdown] id=weights-predict
"""
The **ideal time** is all work divided by all speed. No division of the work ends sooner, and leaving a rank out takes longer. So by this picture nobody would ever leave a rank out. The picture leaves three things out: messages, whole samples, and the steps until the speeds are known.

## 1 · Unequal batches, one gradient

Four ranks share 40 samples. One of them is three times slower, so the shares are 12, 12, 4 and 12. Each rank takes the mean loss of its own samples, and DDP takes the mean of the ranks' gradients.

How much does each sample count then? This model shows it. It has one number per sample, and the loss is the mean of the numbers. So the gradient of a number is the weight of its sample.

**Predict** with PyTorch's DDP: (a) the weight of a sample on a fast rank; (b) on the slow one; (c) what both should be.

<details><summary>Answer</summary>
(a) A rank's mean gives each of its 12 samples 1/12, the mean over four ranks a quarter of that: 1/48 = 0.0208. (b) 1/16 = 0.0625, three times as much. (c) 1/40 = 0.025.
</details>
"""

# %% id=job topics=27.mixed-devices
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.heterogeneous import places, proportional_shares

SLOW = P - 2  # which rank is slow; benchmarks/heterogeneous.py takes each in turn
HOST = {"device": "cpu"}
SPEEDS = [1.0 if rank == SLOW else SLOWER for rank in range(P)]  # in any unit
UNEVEN = proportional_shares(10 * P, SPEEDS)
EVEN = [10] * P


class Counted(nn.Module):
    """A number for each sample: the gradient of a mean of them says what each sample counts."""

    def __init__(self):
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(10 * P, dtype=torch.double))

    def forward(self, samples):
        return self.numbers[samples]

# %% id=my-weights topics=27.mixed-devices
def my_weight(num_samples):
    """On a rank: what to multiply its mean loss by, so that DDP's mean is the mean over all samples."""
    p = dist.get_world_size()
    everyone = torch.tensor([num_samples])
    dist.all_reduce(everyone)
    return p * num_samples / everyone.item()


def counts(shares, weighted):
    """On a rank: the weight of each sample in the gradient that PyTorch's DDP leaves."""
    mine = torch.tensor(places(shares)[dist.get_rank()])
    model = TorchDDP(Counted())
    weight = my_weight(len(mine)) if weighted else 1.0
    (weight * model(mine).mean()).backward()
    return model.module.numbers.grad

# %% id=my-weights-run topics=27.mixed-devices
CASES = [("DDP", EVEN, False), ("DDP", UNEVEN, False), ("weighted", UNEVEN, True)]
found = launch(lambda: [counts(shares, weighted) for _, shares, weighted in CASES], P, **HOST)[0]
for (name, shares, _), gradient in zip(CASES, found, strict=True):
    by_rank = [f"{gradient[part.start]:.4f}" for part in places(shares)]
    print(f"{name:8s} shares {shares}: a sample counts", ", ".join(by_rank), "by rank")

# %% [markdown] id=weights-answer
"""
Answer: (a) «0.0208», (b) «0.0625», (c) 0.025, which the weighted loss gives. DDP raises no error here. It takes the mean of the ranks, and cannot know that their means stand for different numbers of samples. With equal shares both are the same.

So each rank multiplies its *loss* by *p n*ᵣ / *N*. Here *n*ᵣ are its samples, and *N* those of all ranks. The loss is weighted and not the gradient. So several backwards add up, and a compression hook compresses the right gradients. `WeightedDataParallel` does this. A rank may have no samples in a step; DDP would wait for its backward for ever.
"""

# %% id=show-weigh topics=27.mixed-devices
from dtcourse.course import show
from dtcourse.heterogeneous import WeightedDataParallel

show(WeightedDataParallel.weigh, docstring=False)

# %% [markdown] id=equal-predict
"""
**Predict.** Six steps of SGD on a small network. The shares are 12, 12, 4, 12 in one step and 14, 13, 13, 0 in the next, in turn. How far is the weighted model from one process on the whole batch? And how far is PyTorch's DDP with 12, 12, 4, 12 in each step: by rounding, by about a hundredth of what was trained, or by more?

<details><summary>Answer</summary>
The weighted steps by rounding. DDP by more than a hundredth: in each step a tenth of the batch counts three times as much as the rest.
</details>
"""

# %% id=training topics=27.mixed-devices
def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def small_batch(step):
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(10 * P, 8, dtype=torch.double, generator=draw)
    return x, torch.randint(4, (10 * P,), generator=draw)


def weighted_step(model, optimizer, x, y, mine):
    """One step, with this rank's samples of the batch: a range, which may be empty."""
    optimizer.zero_grad()
    with model.step(len(mine)):
        if mine:
            outputs = model(x[mine.start : mine.stop])
            model.weigh(F.cross_entropy(outputs, y[mine.start : mine.stop])).backward()
    optimizer.step()


def plain_step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()

# %% id=training-ways topics=27.mixed-devices
def vector_of(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def trained(way, all_shares):
    """On a rank: the model after a step with each of these shares. A way: "weighted", "DDP", or "one process"."""
    inner = small_model()
    wrap = {"weighted": WeightedDataParallel, "DDP": TorchDDP}.get(way, lambda model: model)
    model, optimizer = wrap(inner), torch.optim.SGD(inner.parameters(), lr=0.3)
    for step, shares in enumerate(all_shares):
        (x, y), mine = small_batch(step), places(shares)[dist.get_rank()]
        if way == "weighted":
            weighted_step(model, optimizer, x, y, mine)
        elif way == "DDP":
            plain_step(model, optimizer, x[mine.start : mine.stop], y[mine.start : mine.stop])
        else:
            plain_step(model, optimizer, x, y)
    return vector_of(inner)

# %% id=training-run topics=27.mixed-devices
NOBODY_HERE = [*proportional_shares(10 * P, [1.0] * (P - 1)), 0]  # the last rank has no samples
RUNS = {
    "weighted": ("weighted", [UNEVEN, NOBODY_HERE] * 3),
    "PyTorch's DDP, unequal shares": ("DDP", [UNEVEN] * 6),
    "PyTorch's DDP, equal shares": ("DDP", [EVEN] * 6),
    "one process": ("one process", [EVEN] * 6),
    "untrained": ("one process", []),
}
ends = launch(lambda: {name: trained(*run) for name, run in RUNS.items()}, P, **HOST)[0]
right, start = ends["one process"], ends["untrained"]
for name in list(RUNS)[:3]:
    off = ((ends[name] - right).norm() / (right - start).norm()).item()
    print(
        f"{name:30s} off by {'rounding' if off < 1e-12 else f'{off:.0%}'} of the way that was trained"
    )

# %% [markdown] id=shares-predict
"""
Answer: weighted by rounding, also with a rank that has nothing to do. DDP is off by «n %» of the way from the start.

**What this adds to the question.** With weighted losses shares are free: they change the time of a step, and not its gradient.

## 2 · Shares by speed and by memory

Shares in proportion to speed let all ranks end together. Samples are whole, so each rank gets its proportion rounded down. What is left over goes, one sample after another, to the rank that ends first with one more.

**Predict.** 32 samples, speeds 3, 3, 1, 3 (samples per millisecond). (a) Which shares, and how long is the step beside the ideal 3.2 ms? (b) Rank 0 has memory for eight samples only. Which shares now?

<details><summary>Answer</summary>
(a) 9.6, 9.6, 3.2, 9.6 are rounded down to 9, 9, 3, 9. Two are left over. With one more a fast rank ends after 10/3 = 3.33 ms, the slow one after 4 ms. So 10, 10, 3, 9, and 3.33 ms. (b) Eight; the other 24 go by speed: 10.29, 3.43, 10.29. One is left over, and a fast rank takes it: 8, 11, 3, 10, and 11/3 = 3.67 ms.
</details>
"""

# %% id=my-shares topics=27.mixed-devices,27.resource-aware
def my_shares(total, speeds, limits):
    """Samples of each rank: in proportion to speed, none above its limit, in sum exactly the total."""
    exact, free = {}, set(range(len(speeds)))
    while True:
        left = total - sum(exact.values())
        together = sum(speeds[rank] for rank in free)
        full = [rank for rank in free if left * speeds[rank] / together > limits[rank]]
        if not full:
            break
        exact |= {rank: limits[rank] for rank in full}
        free -= set(full)
    exact |= {rank: left * speeds[rank] / together for rank in free}
    shares = [int(exact[rank]) for rank in range(len(speeds))]
    while sum(shares) < total:
        free = [rank for rank in range(len(speeds)) if shares[rank] < limits[rank]]
        shares[min(free, key=lambda rank: (shares[rank] + 1) / exact[rank])] += 1
    return shares

# %% id=my-shares-run topics=27.mixed-devices,27.resource-aware
from dtcourse.heterogeneous import ideal_seconds, samples_that_fit, step_seconds

for total, speeds, limits in (
    (32, [3, 3, 1, 3], [32, 32, 32, 32]),
    (32, [3, 3, 1, 3], [8, 32, 32, 32]),
    (14, [4, 4, 1], [14, 14, 14]),
):
    mine, ours = my_shares(total, speeds, limits), proportional_shares(total, speeds, limits)
    print(f"speeds {speeds}, limits {limits}: mine {mine}, the course's {ours}", end="; ")
    print(f"{step_seconds(ours, speeds):.2f} ms, the ideal {ideal_seconds(total, speeds):.2f} ms")
fits = samples_that_fit(0, 24e9, 18e9, 0.9e9)
print(f"24 GB, of which states take 18, at 0.9 GB per sample: {fits} samples")

# %% [markdown] id=measured-predict
"""
Answer: (a) 10, 10, 3, 9 and 3.33 ms; (b) 8, 11, 3, 10 and 3.67 ms. The third line is a case for which another usual rule is slower. The largest remainder of 6.22, 6.22 and 1.56 is the slow rank's; a second sample there would take until 2 ms.

A limit in bytes becomes a limit in samples. What does not depend on the batch (parameters, gradients, optimizer states) is taken off, and the rest is divided by a sample's activations.

Where do speeds come from? From measuring: a data sheet does not know which rank is hot. `measured` does some work on each rank, and tells all ranks what everyone took.

From here on devices and network are emulated, on a virtual clock. An emulated device takes time by operations and bytes. A rank that is three times slower is so in everything, its optimizer too. What the emulator does not know: small batches use a GPU badly. On a real one time is not in proportion to samples, and a speed holds near the share at which it was measured.

**Predict** a step of 768 samples on four ranks, forward and backward and the messages: with equal shares, in proportion, and where rank 0 has memory for 100 samples. A message of *n* bytes takes 5 µs + *n* / (1.25 GB/s). A ring has 2 (*p* − 1) of them, each with a *p*-th of the gradients: 0.36 ms. The ideal is about 2 ms without messages.

<details><summary>Answer</summary>
In proportion the slow rank has 77 of 768 samples and takes about 2 ms. Equal: it has 192, so 192/77 · 2 = 5 ms. With the limit the other three share 668 at speeds 3, 1, 3: 287, 95, 286, and 96/77 · 2 = 2.5 ms. To each 0.36 ms for messages.
</details>
"""

# %% id=emulated topics=27.mixed-devices
from dtcourse.heterogeneous import measured

BATCH, WIDTH = 192 * P, 128
FAST = EmulatedDevice(flops=2e10, bandwidth=1e11)
NETWORK = EmulatedNetwork(latency=5e-6, bandwidth=1.25e9)
DEVICES = [FAST.slower(SLOWER) if rank == SLOW else FAST for rank in range(P)]
EMULATED = HOST | {"devices": DEVICES, "network": NETWORK}


def build():
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).double()


def batch(step):
    """Made-up numbers: what is looked at is time, and whether two ways compute the same."""
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, dtype=torch.double, generator=draw)
    return x, torch.randint(10, (BATCH,), generator=draw)


NBYTES = 8 * (2 * (WIDTH * WIDTH + WIDTH) + 10 * (WIDTH + 1))  # of all parameters
MESSAGES = 2 * (P - 1) * (NETWORK.latency + NBYTES / P / NETWORK.bandwidth)

# %% id=timed topics=27.mixed-devices
def seconds_of(steps, do_step):
    """On a rank: the seconds of each step, from a moment at which all begin to one at which all have ended."""
    took = []
    for step in range(steps):
        x, y = batch(step)
        dist.barrier()
        began = emulation.now()
        do_step(x, y)
        dist.barrier()
        took.append(emulation.now() - began)
    return took


def step_with(shares):
    """On a rank: the seconds of a second step with these shares."""
    inner, mine = build(), places(shares)[dist.get_rank()]
    model, optimizer = WeightedDataParallel(inner), torch.optim.SGD(inner.parameters(), lr=0.05)
    return seconds_of(2, lambda x, y: weighted_step(model, optimizer, x, y, mine))[-1]

# %% id=speeds topics=27.mixed-devices
def measured_speeds(samples):
    """On a rank: everyone's speed in forward and backward of so many samples."""
    inner, (x, y) = build(), batch(0)
    work = lambda: F.cross_entropy(inner(x[:samples]), y[:samples]).backward()  # noqa: E731
    return [one.speed for one in measured(work, samples, repeats=1)]

# %% id=timed-run topics=27.mixed-devices,27.resource-aware
LIMITS = [100] + [BATCH] * (P - 1)
chosen = {
    "equal": [BATCH // P] * P,
    "in proportion": proportional_shares(BATCH, SPEEDS),
    "and rank 0 holds 100": proportional_shares(BATCH, SPEEDS, LIMITS),
}
both = lambda: (measured_speeds(BATCH // P), list(map(step_with, chosen.values())))  # noqa: E731
known, found = launch(both, P, **EMULATED)[0]
print("measured, samples per ms:", *(f"{speed / 1e3:.0f}" for speed in known))
print(f"ideal {ideal_seconds(BATCH, known) * 1e3:.2f} ms, messages {MESSAGES * 1e3:.2f} ms")
rows = []
for (name, shares), took in zip(chosen.items(), found, strict=True):
    work = step_seconds(shares, known)
    predicted = work + MESSAGES
    rows.append((name, str(shares), work * 1e3, predicted * 1e3, took * 1e3, took / predicted))
header = ["", "shares", "work, ms", "and messages", "measured", "ratio"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[2:], "{:.2f}"))

# %% [markdown] id=flap-predict
"""
Answer: «5.4», «2.4» and «2.9» ms are predicted, and «n», «n» and «n» are measured. What is left over is the optimizer and what a step says besides: the number of samples that each rank tells the others, and the barriers. The slow rank's optimizer takes three times as long, and no share relieves it of that.

So the ideal that a step can reach here is the ideal work *and* the messages, «2.4» ms.

**What this adds to the question.** Shares in proportion to measured speed come within «n %» of the ideal with its messages. Memory is a bound like speed: what one rank cannot hold, the others take by their speeds.

## 3 · A balance that moves

Speeds change: a GPU gets hot, another job comes and goes. So shares follow what was measured. But each measurement has noise, and shares that follow noise never rest: they **flap**.

Each rank's seconds vary by 5 % from step to step, and nothing else changes. The shares are right at first. After each step my balance works out the shares that would have been best by what it has measured, in the last step or as a median of seven. It takes them if they promise a gain of more than a threshold.

**Predict** for 100 steps. (a) How often does it move with threshold 0, by the last step: never, about 10 times, nearly always? (b) And with a threshold of 5 %, and of 20 %? (c) What do all these moves cost in the time of a step: nothing, about 2 %, about 10 %?

<details><summary>Answer</summary>
(a) Nearly always: some division is always a little better for the last step. (b) Less with 5 %: the slowest of four noisy ranks is often 5 % above their mean. Hardly with 20 %; but such a balance does not see a rank that has become 15 % slower either. (c) About 2 %: shares that follow the last step's noise add that noise to the next step's, so it is √2 times as large, and the slowest of four ranks is about one standard deviation above the mean.
</details>
"""

# %% id=noise topics=27.dynamic-balance
import math
import random
import statistics


def noisy(shares, draw, noise=0.05):
    """Seconds of each rank in a step."""
    return [
        n / speed * draw.lognormvariate(0, noise) for n, speed in zip(shares, SPEEDS, strict=True)
    ]

# %% id=my-balance topics=27.dynamic-balance
def my_balance(threshold, window, seed, steps=100):
    """How often shares move, and the mean step over the ideal one. They follow the median of the last steps."""
    draw, moves, took, past = random.Random(seed), 0, [], []
    shares = proportional_shares(BATCH, SPEEDS)
    for _ in range(steps):
        seconds = noisy(shares, draw)
        took.append(max(seconds))
        past.append([n / s for n, s in zip(shares, seconds, strict=True)])
        speeds = [statistics.median(each) for each in zip(*past[-window:], strict=True)]
        better = proportional_shares(BATCH, speeds, least=1)
        if step_seconds(shares, speeds) / step_seconds(better, speeds) - 1 > threshold:
            shares, moves = better, moves + 1
    return moves, statistics.mean(took) / ideal_seconds(BATCH, SPEEDS)

# %% id=with-rule topics=27.dynamic-balance
from dtcourse.heterogeneous import Hysteresis, Meter


def with_the_rule(seed, steps=100):
    """The same by the course's rule, which knows how sure a median is."""
    draw, moves, took = random.Random(seed), 0, []
    shares, rule = proportional_shares(BATCH, SPEEDS), Hysteresis(threshold=0.05, patience=2)
    meters = [Meter(window=7) for _ in SPEEDS]
    for _ in range(steps):
        seconds = noisy(shares, draw)
        took.append(max(seconds))
        for meter, spent, n in zip(meters, seconds, shares, strict=True):
            meter.add(spent, n)
        known = [meter.capability() for meter in meters]
        better = proportional_shares(BATCH, [one.speed for one in known], least=1)
        now, then = (
            [n * one.seconds for n, one in zip(s, known, strict=True)] for s in (shares, better)
        )
        if known[0].number >= 3 and rule.moves(now, then, known):
            shares, moves = better, moves + 1
            for meter in meters:
                meter.clear()
    return moves, statistics.mean(took) / ideal_seconds(BATCH, SPEEDS)

# %% id=flap-run topics=27.dynamic-balance
ways = {
    f"last step, threshold {t:.0%}": lambda seed, t=t: my_balance(t, 1, seed)
    for t in (0.0, 0.05, 0.2)
}
ways["median of 7, threshold 5%"] = lambda seed: my_balance(0.05, 7, seed)
ways["median of 7, and the rule"] = with_the_rule
ways["never moves"] = lambda seed: my_balance(math.inf, 1, seed)
rows = []
for name, way in ways.items():
    moves, over = zip(*(way(seed) for seed in range(8)), strict=True)
    rows.append((name, statistics.mean(moves), min(moves), max(moves), statistics.mean(over)))
header = ["8 seeds, 100 steps each", "moves", "fewest", "most", "step / ideal"]
plots.table(rows, columns=header, formats={header[-1]: "{:.3f}", "moves": "{:.1f}"})

# %% [markdown] id=flap-answer
"""
Answer: (a) «n» of 100. (b) «n» with 5 % and «n» with 20 %; a median of seven and 5 % «n». (c) «n» times the ideal against «n» where nothing moves. (A step is above the ideal even then: it takes as long as the slowest of the ranks, and the slowest of several noisy times is above their mean.)

So flapping costs little where only shares of a batch move. It is not always so cheap. Where each rank reads its own part of the data, other samples mean cold caches. Where a layer moves with its optimizer's states, a move may cost more than a step (section 5).

The course's rule moves «n» times. It asks for a gain that is

- larger than the threshold, and two standard errors of the two ranks that decide, and an allowance for luck: the slowest of *p* noisy ranks looks slower than it is. So noise makes it slower to move, and not restless;
- seen twice in a row (`patience`), which is a short wait for one more measurement.

And it looks at what came of a move: one that has gained nothing is taken back.
"""

# %% id=show-hysteresis topics=27.dynamic-balance
show(Hysteresis.moves)

# %% [markdown] id=changing-predict
"""
What such care costs is time. `Balance` begins with equal shares, and moves at the earliest when it has three measurements of the same shares (`settle`). It takes medians of the last seven steps.

**Predict.** The slow rank is slow from the first step, number 0. In step 20 it recovers, and another rank becomes three times slower. After which steps do shares move, if there is no noise?

<details><summary>Answer</summary>
After step 2 there are three measurements, and the gain is seen once; after step 3 twice: it moves. From step 20 on the median of seven is new when four of them are: after step 23, and for the second time after step 24. So after steps 3 and 24. A shorter window is quicker, and weaker against outliers.
</details>
"""

# %% id=changing topics=27.dynamic-balance
from dtcourse.heterogeneous import Balance


def changing(steps=32, change=20):
    """On a rank: the shares of each step, and after which steps they moved. Work is slept, on the virtual clock."""
    rank, balance, found = dist.get_rank(), Balance(BATCH), []
    for step in range(steps):
        slow = SLOW if step < change else 0
        found.append(list(balance.shares))
        began = emulation.now()
        emulation.sleep((30e-6 if rank == slow else 10e-6) * len(balance.mine))
        balance.after(emulation.now() - began)
    return found, balance.moved

# %% id=changing-run topics=27.dynamic-balance
shares, moved = launch(changing, P, network=NETWORK, clock="virtual", **HOST)[0]
print("moved after steps", moved, "- shares:", shares[0], "then", shares[10], "then", shares[-1])
plots.curves(
    {f"rank {rank}": (range(len(shares)), [one[rank] for one in shares]) for rank in range(P)},
    xlabel="step", ylabel="samples", title="Shares follow speed: the slow rank changes in step 20",
)  # fmt: skip

# %% [markdown] id=drop-predict
"""
Answer: after steps «3 and 24». So four steps are taken with the wrong shares at first, and five after the change. Here a wrong step takes 2.5 times as long as a right one at first, and three times after the change.

**What this adds to the question.** Shares can follow speeds that change. It takes some steps to know, and the more noise there is, the more.

## 4 · Balance it, or leave it out?

The picture at the top says that sharing is always quicker than leaving the slow rank out: at a factor of 3 by a tenth, 1/(3 + 1/3) against 1/3. Here are four ways on the same job, 20 steps from the start: PyTorch's DDP with equal shares; DDP on the other ranks alone; the balance, which begins with equal shares; and the balance that measures first, with 48 samples on each rank, which is counted in its first step. (Who leaves a rank out has to know which one is slow; here that costs nothing.)

**Predict.** (a) Order the four by the mean of all 20 steps. (b) And by the last ten.

<details><summary>Answer</summary>
(b) Both balances, then the other ranks alone, then DDP. (a) The first four steps of the balance are as slow as DDP's: about 3 ms too much, four times. What it gains afterwards is a tenth of a millisecond or so per step, so 20 steps are too few to earn that back. To measure 48 samples twice takes the slow rank about 2.5 ms, once. So near the top the balance that measures first and the other ranks alone are close; the table says it.
</details>
"""

# %% id=ways topics=27.dynamic-balance
def balanced(steps, first=0):
    """On a rank: seconds of each step. first: samples with which speeds are measured before the first step, if any."""
    inner = build()
    dist.barrier()
    began = emulation.now()
    speeds = measured_speeds(first) if first else None
    spent = emulation.now() - began
    model, balance = WeightedDataParallel(inner), Balance(BATCH, speeds=speeds)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)

    def do_step(x, y):
        weighted_step(model, optimizer, x, y, balance.mine)
        balance.after(model.seconds)

    took = seconds_of(steps, do_step)
    return [took[0] + spent, *took[1:]]

# %% id=ways-equal topics=27.dynamic-balance
def equal_shares(steps, ranks):
    """On a rank: seconds of each step of PyTorch's DDP on these ranks alone."""
    group, rank = dist.new_group(ranks), dist.get_rank()
    if rank not in ranks:
        return seconds_of(steps, lambda x, y: None)
    inner = build()
    model, optimizer = (
        TorchDDP(inner, process_group=group),
        torch.optim.SGD(inner.parameters(), lr=0.05),
    )
    mine = places(proportional_shares(BATCH, [1.0] * len(ranks)))[ranks.index(rank)]
    part = slice(mine.start, mine.stop)
    return seconds_of(steps, lambda x, y: plain_step(model, optimizer, x[part], y[part]))

# %% id=ways-run topics=27.dynamic-balance
def four_ways(steps):
    """On a rank, by way: seconds of each step."""
    everyone = list(range(dist.get_world_size()))
    return {
        "PyTorch's DDP": equal_shares(steps, everyone),
        "DDP without the slow rank": equal_shares(steps, [r for r in everyone if r != SLOW]),
        "balance": balanced(steps),
        "balance, measured first": balanced(steps, first=48),
    }


found = launch(four_ways, P, 20, **EMULATED)[0]
bound = ideal_seconds(BATCH, known) + MESSAGES
rows = [
    (
        name,
        statistics.mean(took) * 1e3,
        statistics.mean(took[10:]) * 1e3,
        statistics.mean(took[10:]) / bound,
    )
    for name, took in found.items()
]
header = ["", "all 20 steps, ms", "the last ten", "/ ideal and messages"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[1:], "{:.2f}"))

# %% id=ways-picture hidden topics=27.dynamic-balance
from itertools import accumulate

plots.curves(
    {name: (range(1, 21), list(accumulate(took))) for name, took in found.items()},
    xlabel="steps", ylabel="seconds since the start", y_unit="seconds",
    title=f"One rank {SLOWER:g} times slower: the first 20 steps",
)  # fmt: skip

# %% [markdown] id=bench-predict
"""
Answer: (a) «balance, measured first n ms; DDP without the slow rank n; balance n; DDP n». (b) «n, n, n, n». So the balance wins in the end, and by little: at a factor of 3 the slow rank adds a ninth to the others' speed.

`benchmarks/heterogeneous.py` ran the same job at five factors, with each rank as the slow one in turn. Its balance begins with equal shares.

**Predict.** From which factor on does leaving the slow rank out win over all of the first 20 steps: 1.5, 2, 3 or 5? And after how many steps has the balance caught up, at 2, 3 and 5: tens, hundreds, thousands?

<details><summary>Answer</summary>
From 2 on, among these. The table computes the steps: what the balance lost at the start, divided by what it gains per step afterwards. The slower the rank, the more is lost at first, and the less it can add afterwards: both make it longer.
</details>
"""

# %% id=bench topics=27.dynamic-balance
import json

from dtcourse.course import places as course_places

BENCH = json.loads((course_places.home() / "benchmarks/results/heterogeneous.json").read_text())
rows = []
for factor in ("1", "1.5", "2", "3", "5"):
    row = BENCH[f"{factor} times slower"]
    settled, everything = row["milliseconds, settled"], row["milliseconds, all"]
    lost = 20 * (everything["ours"] - settled["ours"])  # over 20 steps
    ours = settled["ours"], everything["ours"], lost / (settled["dropping"] - settled["ours"])
    rows.append((factor, *(settled[way] for way in ("ideal", "DDP", "dropping")), *ours))
print(BENCH["what"])
header = [
    "slower",
    "ideal",
    "DDP",
    "dropping",
    "ours, settled",
    "ours, all 20",
    "steps to catch up",
]
plots.table(
    rows, columns=header, formats=dict.fromkeys(header[1:6], "{:.2f}") | {header[6]: "{:.0f}"}
)

# %% [markdown] id=bench-answer
"""
Answer: from a factor of 2 on: 2.64 ms against 2.59 over the first 20 steps; at 5 it is 3.83 against 2.59. The balance has caught up after 25 steps at 2, after 93 at 3, and after about 1,900 at 5, where it gains half a percent. So on this job:

- at 1.5 balance at once;
- at 2 or 3 balance a run that has hundreds of steps, or measure first;
- at 5 leave the rank out, unless its memory is needed: any small trouble costs more than it adds.

"Ideal" in this table is work alone. Ours is 23 to 26 % above it. Messages, which each way pays, are most of that (0.36 of 0.45 ms at 3). This is one model on one network, without noise. With a larger batch messages weigh less, and the ways differ more.

**What this adds to the question.** The nearer the slow rank is to the others, the more it adds and the sooner. A rank five times slower is better left out, or given other work (section 7).

## 5 · Stages that move

In a pipeline the unit is a layer. A pipeline is as slow as its slowest stage. So layers go to the ranks in proportion to speed, in whole layers.

**Predict** for 20 equal layers on four ranks, of which rank 2 is three times slower: (a) the best cut; (b) which layers move from 5, 5, 5, 5 to there, and what they send with Adam, in layers' bytes; (c) the step before and after, of eight micro-batches, in units of one layer's micro-batch on a fast rank. (The slowest stage works on all eight; the others add theirs once.)

<details><summary>Answer</summary>
(a) 6, 6, 2, 6: each stage takes 6. (b) Layer 5 from rank 1 to 0, layers 10 and 11 from rank 2 to 1, layer 14 from rank 2 to 3: four layers. Each takes along Adam's two moments, so 12 layers' bytes. (c) 8 · 15 + 15 = 135, and 8 · 6 + 18 = 66.
</details>
"""

# %% id=stages topics=27.dynamic-balance
from dtcourse.collectives import traffic
from dtcourse.hybrid.moving import MovingStages
from dtcourse.parameters.whole import full_state_dict
from dtcourse.pipeline_parallel import one_f_one_b

MICRO, LAYERS = 8, 5 * P


def many_layers():
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(LAYERS)]


def moving_step(moving, optimizer, x, y):
    """On a rank: the layers of each stage, seconds of the pipeline's step, seconds of `after`, and bytes it sent."""
    sizes = [len(one) for one in moving.ranges]
    dist.barrier()
    moments = [emulation.now()]
    moving.step(x, y)
    dist.barrier()
    moments.append(emulation.now())
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    moments.append(emulation.now())
    with traffic.counting() as sent:
        moving.after(optimizer)
    dist.barrier()
    return sizes, moments[1] - moments[0], emulation.now() - moments[2], sent.bytes_sent()

# %% id=stages-ways topics=27.dynamic-balance
def few(step):
    x, y = batch(step)
    return x[: 12 * MICRO], y[: 12 * MICRO]


def alone(steps):
    """One process's model, on rank 0; elsewhere it stays untrained."""
    model = nn.Sequential(*many_layers())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(0 if dist.get_rank() else steps):
        plain_step(model, optimizer, *few(step))
    return model.state_dict()


def moving_run(steps):
    """On a rank: what each step was, after which steps layers moved, and the difference from one process on rank 0."""
    moving = MovingStages(many_layers(), one_f_one_b(P, MICRO), F.cross_entropy)
    optimizer = torch.optim.Adam(moving.module.parameters(), lr=1e-3)
    found = [moving_step(moving, optimizer, *few(step)) for step in range(steps)]
    state, right = full_state_dict(moving.module), alone(steps)
    off = max((state[name] - value).abs().max().item() for name, value in right.items())
    return found, moving.moved, off

# %% id=stages-run topics=27.dynamic-balance
run = launch(moving_run, P, 6, **EMULATED)
found, moved, off = run[0]
print("moved after steps", moved, end="; ")
print("the model's difference from one process:", "below 1e-9" if off < 1e-9 else f"{off:.1e}")
(before, slow_step, *_), (after, quick_step, *_) = found[0], found[-1]
print(
    f"layers {before}: {slow_step * 1e3:.1f} ms; layers {after}: {quick_step * 1e3:.1f} ms",
    end="; ",
)
print(f"ratio {slow_step / quick_step:.2f}, predicted {135 / 66:.2f} with 4 ranks")
sent = sum(rank[0][moved[0]][3] for rank in run)
states = 4 * 3 * 8 * (WIDTH * WIDTH + WIDTH)
print(
    f"sent when it moved: {sent:,} bytes; 4 layers with Adam's states {states:,}: {sent / states:.3f}",
    end="; ",
)
print(f"{found[moved[0]][2] * 1e3:.1f} ms")

# %% [markdown] id=stages-answer
"""
Answer: (a) «6, 6, 2, 6». (b) «n» bytes, of which four layers with both of Adam's moments are all but «n %»; names, shapes, and what ranks compare before a move are the rest. (c) «n» against «n» ms: «n» times as quick, 2.05 predicted without messages. The model is one process's: a layer takes along its parameters, its buffers and its optimizer's states.

A move costs once, and each step gains. Here it takes «n» ms, and each step gains «n» ms, so it has paid after «one» step. But a layer is a coarse unit. With five layers per stage nothing can be gained before a rank is a fifth slower, since some other rank would have to take six.

How a rank's speed is known: its own forwards and backwards are timed, without the messages between them.
"""

# %% id=show-after topics=27.dynamic-balance
show(MovingStages.after, docstring=False)

# %% [markdown] id=layout-predict
"""
**What this adds to the question.** In a pipeline shares are layers. They move with all that belongs to them, and a move has its price.

## 6 · A layout for unequal ranks

With several techniques the choice is larger: which ranks, how many copies of the model, how many stages, which layers and samples for whom. Two things decide: what each rank was measured to do, and what its memory holds.

Two new GPUs have 80 GB and take 0.1 s per sample. Two old ones have 32 GB and take 0.3 s. The model has twelve equal layers, each with 4 GB of states, 0.25 GB of activations per sample, 0.05 GB of output per sample, and 1 GB of gradients. The batch has 64 samples in eight micro-batches. Links carry 12.5 GB/s.

**Predict.** Which fit, and which is the quickest: (a) four copies of the model; (b) two copies, on the new GPUs alone; (c) two copies of two stages, each on a new and an old GPU, with nine and three layers; (d) two copies of two stages with six layers each, one on the new GPUs with 48 samples, the other on the old ones with 16; (e) one pipeline of four stages?

<details><summary>Answer</summary>
(a) does not fit: 48 GB of states on a card of 32. (b) leaves out a quarter of the speed. (c) and (d) use all of it: nine layers on a new GPU take as long as three on an old one, and 48 samples on the new ones as long as 16 on the old ones. (d) has smaller gradients to add up between the copies, those of six layers and not of nine, and wins by that. (e) is last: its bubble has three slots, its messages are large, and whole layers do not divide evenly.
</details>
"""

# %% id=my-layout topics=27.adaptive-parallelism,27.resource-aware
GB, LINK, CARDS = 1e9, 12.5e9, (80e9, 80e9, 32e9, 32e9)
LAYER = {"states": 4 * GB, "activations": 0.25 * GB, "outputs": 0.05 * GB, "gradients": 1 * GB}
SECONDS = (0.1, 0.1, 0.3, 0.3)  # of a sample through the whole model


def my_layout(stages, cuts, shares, m=8):
    """Seconds of a step, and whether it fits. stages: by copy, the rank of each stage; shares: a copy's samples."""
    dp, pp, slowest, fits = len(stages), len(cuts), 0.0, True
    for copy, share in zip(stages, shares, strict=True):
        for s, (rank, layers) in enumerate(zip(copy, cuts, strict=True)):
            message = 2 * LAYER["outputs"] / LINK if s < pp - 1 else 0.0
            slowest = max(slowest, share / m * (layers / sum(cuts) * SECONDS[rank] + message))
            under_way = math.ceil(share / m) * min(m, pp - s)
            fits &= layers * (LAYER["states"] + under_way * LAYER["activations"]) <= CARDS[rank]
    reduce = 2 * (dp - 1) / dp * max(cuts) * LAYER["gradients"] / LINK
    return (m + pp - 1) * slowest + reduce, fits

# %% id=my-layout-run topics=27.adaptive-parallelism,27.resource-aware
for name, asked in {
    "(a) four copies": (((0,), (1,), (2,), (3,)), (12,), (24, 24, 8, 8)),
    "(b) the new ones": (((0,), (1,)), (12,), (32, 32)),
    "(c) new with old": (((0, 2), (1, 3)), (9, 3), (32, 32)),
    "(d) new with new": (((0, 1), (2, 3)), (6, 6), (48, 16)),
    "(e) one of four": (((0, 1, 2, 3),), (5, 5, 1, 1), (64,)),
    "(e) cut otherwise": (((0, 1, 2, 3),), (5, 4, 2, 1), (64,)),
}.items():
    seconds, fits = my_layout(*asked)
    print(f"{name:18s} {seconds:.2f} s, {'fits' if fits else 'does not fit'}")

# %% [markdown] id=choose-predict
"""
Answer: (a) does not fit. (d) «3.61 s», (c) «3.71 s», (b) «4.16 s», (e) «4.37 s» at best. `choose` of the planner tries orders, cuts and shares, and keeps what fits.

**Predict.** The old GPUs become slower: 4, 6, 8, 10 times slower than the new ones. (a) From where on does the best layout leave them out? (b) And at 10, if the new ones have 48 GB, or 40?

<details><summary>Answer</summary>
(a) In layout (d) the old GPUs get fewer and fewer samples, down to one in each micro-batch. At 8 that is as quick as leaving them out; at 10 that one sample holds up the others. (b) With 48 GB the new ones hold the model as a pipeline of two stages, six layers each with two micro-batches under way: 6 · (4 + 2 · 8 · 0.25) = 48 GB. With 40 GB they do not, so an old GPU takes a layer, however slow it is.
</details>
"""

# %% id=choose topics=27.adaptive-parallelism,27.resource-aware
from dtcourse.planner.unequal import choose
from dtcourse.planner.unequal_work import Work

WORK = Work(costs=[1.0] * 12, **{name: [nbytes] * 12 for name, nbytes in LAYER.items()})
cases = [(factor, 80) for factor in (2, 3, 4, 6, 8, 10)] + [(10, 48), (10, 40)]
rows = []
for factor, new in cases:
    seconds = [0.1, 0.1, factor / 10, factor / 10]
    memory = [new * GB, new * GB, *CARDS[2:]]
    best = choose(WORK, seconds, memory, batch=64, micro_batches=8, bandwidth=LINK)[0]
    cuts = [len(chosen) for chosen in best.ranges]
    held = max(best.memory.values()) / GB
    rows.append((factor, new, str(best.stages), str(cuts), str(best.shares), held, best.seconds))
header = [
    "old slower",
    "new, GB",
    "ranks of each copy",
    "layers",
    "samples",
    "fullest, GB",
    "seconds",
]
plots.table(rows, columns=header, formats={"seconds": "{:.2f}", header[5]: "{:.0f}"})

# %% id=choose-picture hidden topics=27.adaptive-parallelism
new_alone = choose(WORK, [0.1, 0.1], [80 * GB] * 2, 64, 8, LINK)[0].seconds
wide = [(row[0], row[-1]) for row in rows if row[1] == 80]
plots.curves(
    {
        "all four may be used": tuple(zip(*wide, strict=True)),
        "the two new ones alone": ([f for f, _ in wide], [new_alone for _ in wide]),
    },
    xlabel="how many times slower the two old GPUs are", ylabel="predicted seconds of a step",
    title="Where old GPUs stop being of use",
)  # fmt: skip

# %% [markdown] id=choose-answer
"""
Answer: (a) At 2 it is (c) with 8 and 4 layers, «3.33 s»; from 3 to 8 (d) with fewer and fewer samples for the old ones, «3.61, 3.76, 4.00 and 4.15 s»; at 10 the new ones alone, «4.16 s». So from 8 on the old ones are of no use here. (b) With 48 GB a pipeline of the two new ones, «4.18 s»; with 40 GB one of three stages, the first one on an old GPU with a single layer, «7.31 s». The formula has no overlap, no optimizer and no latency, and it takes the measured seconds of a sample for any micro-batch. So it ranks layouts, and seconds that differ by a few percent are no ranking. Section 5 held its pipeline term to a run.

**What this adds to the question.** Memory can force a slow rank in, and speed can put it out. Both are measured on the machines that are there.

## 7 · Tasks from a queue

Evaluation, preprocessing and trials of hyper-parameters are tasks that do not need each other. There nobody has to know any speed: whoever is free takes the next task.

**Predict** for 48 tasks of 10 ms on four ranks, one of them three times slower: how long (a) with twelve tasks for each, (b) from one queue, beside the ideal of 144 ms? (c) What is the most that (b) can be above the ideal?

<details><summary>Answer</summary>
(a) 12 · 30 = 360 ms. (b) Near 144 ms. (c) One task of the slowest rank, 30 ms: it may take one just before the queue is empty.
</details>
"""

# %% id=my-queue topics=27.work-stealing
import tempfile

from dtcourse.heterogeneous import do_tasks
from dtcourse.launch import RankFailure, shared_folder


def my_queue(work, number, path):
    """On a rank: {task: result} of the tasks that it took. The queue is one number, in a file that all can add to."""
    store, found = dist.FileStore(path, -1), {}
    while (task := store.add("taken", 1) - 1) < number:
        found[task] = work(task)
    return found


def my_part(work, number):
    """On a rank: the same of as many tasks as every rank has."""
    rank, p = dist.get_rank(), dist.get_world_size()
    return {task: work(task) for task in range(rank * number // p, (rank + 1) * number // p)}

# %% id=three-ways topics=27.work-stealing
def three_ways(number, path):
    """On a rank, by way: the seconds until all tasks are done, and how many this rank did."""
    rank, found = dist.get_rank(), {}

    def work(task):
        emulation.sleep(0.01 * (SLOWER if rank == SLOW else 1))
        return task**2

    for name, way in {
        "as many each": lambda: len(my_part(work, number)),
        "my queue": lambda: len(my_queue(work, number, path)),
        "do_tasks": lambda: do_tasks(work, range(number)).by.count(rank),
    }.items():
        dist.barrier()
        began, mine = emulation.now(), way()
        dist.barrier()
        found[name] = emulation.now() - began, mine
    return found

# %% id=my-queue-run topics=27.work-stealing reason="who is free first, and when, is never the same twice"
NUMBER = 12 * P
with tempfile.TemporaryDirectory() as folder:
    run = launch(
        three_ways, P, NUMBER, f"{folder}/tasks", devices=EmulatedDevice(), clock="wall", **HOST
    )
print(
    f"ideal {NUMBER * 10 / (P - 1 + 1 / SLOWER):.0f} ms, and one task of the slow rank {SLOWER * 10:.0f} ms"
)
for name, (seconds, _) in run[0].items():
    print(f"{name:13s} {seconds * 1e3:4.0f} ms; tasks by rank", *(found[name][1] for found in run))

# %% [markdown] id=die-predict
"""
Answer: (a) 360 ms and a little; (b) and (c) between 144 and 174 ms, and what this machine adds. (What arrives first decides here, so the costs are slept on the real clock, and the times are not the same twice.)

One number that all ranks add to is one place that all ranks ask. With many ranks and short tasks that is what they wait for. **Work stealing** gives each rank a queue of its own. A rank whose queue is empty takes from the back of the fullest one. `do_tasks` does that.

**Predict.** A rank is killed in its first task. How many of 48 results are missing in the end (a) with my queue, (b) with `do_tasks`? Where would (b) know from?

<details><summary>Answer</summary>
(a) One: its task was taken, and nobody does it again. What it had finished before would be lost with it, too, as results stay on their rank. (b) None. A rank writes that it begins a task before it does, in a store that no rank holds, and the results go there. A begun task of a dead rank is begun again.
</details>
"""

# %% id=die topics=27.work-stealing
import os
import signal
import time


def dying(way, number, path):
    """On a rank: what became of the tasks. The slow rank is killed in its first one."""
    rank = dist.get_rank()

    def work(task):
        time.sleep(0.01)
        if rank == SLOW:
            os.kill(os.getpid(), signal.SIGKILL)
        return task**2

    dist.barrier()  # else it might come when all is done
    return do_tasks(work, range(number)) if way == "do_tasks" else my_queue(work, number, path)

# %% id=die-run topics=27.work-stealing
for way in ("my queue", "do_tasks"):
    with tempfile.TemporaryDirectory(dir=shared_folder()) as folder:
        run = launch(dying, P, way, NUMBER, f"{folder}/tasks", on_failure="continue", **HOST)
    left = [one for one in run if not isinstance(one, RankFailure)]
    if way == "my queue":
        missing, again = NUMBER - len(set().union(*left)), 0
    else:
        missing, again = len(left[0].unfinished), len(left[0].again)
    print(
        f"{way:9s} {P - len(left)} rank died; {missing} of {NUMBER} results missing, {again} done again"
    )

# %% [markdown] id=die-answer
"""
Answer: (a) «1» missing, (b) «0», and «1» task was done again. A task that kills whoever does it is given up after two ranks (`attempts`), and the result says so. Training is no such task: a step needs all ranks' gradients, so a dead rank there is a matter of [lesson 25c](../lessons/25c-without-a-restart.ipynb).

A rank may be taken for dead and yet end its task, after another one has done it again. So a result is written by compare-and-set: the first one stays.
"""

# %% id=show-finish topics=27.work-stealing
from dtcourse.heterogeneous.task_board import TaskBoard

show(TaskBoard.finish)

# %% [markdown] id=break-predict
"""
**What this adds to the question.** Independent tasks come within one task of the ideal without any measuring, and a rank five times slower is of use there.

## 8 · Break it

**The time of the whole step** (silent). A loop gives `balance.after` the seconds of the step, which it has at hand anyway.

**Predict.** One rank is three times slower. Which shares are there after 15 steps: as they should be, equal ones, or worse than equal?

<details><summary>Answer</summary>
Equal ones. In lock-step all steps take as long as the slowest rank's work, so all ranks look alike, and nothing ever seems to be gained.
</details>
"""

# %% id=whole-step topics=27.dynamic-balance
from dtcourse.asynchronous import find_stragglers


def fed_with(whole, steps=15):
    """On a rank: the shares in the end, and what this rank told the balance after the first step."""
    rank, balance, told = dist.get_rank(), Balance(BATCH), []
    for _ in range(steps):
        began = emulation.now()
        emulation.sleep((30e-6 if rank == SLOW else 10e-6) * len(balance.mine))
        own = emulation.now() - began
        dist.all_reduce(torch.zeros(1))  # the gradients: everybody waits here
        told.append(emulation.now() - began if whole else own)
        balance.after(told[-1])
    return balance.shares, told[0]

# %% id=whole-step-run topics=27.dynamic-balance
feeds = {"whole step": True, "own work": False}
run = launch(
    lambda: [fed_with(one) for one in feeds.values()], P, network=NETWORK, clock="virtual", **HOST
)
for at, name in enumerate(feeds):
    shares, told = run[0][at][0], [found[at][1] for found in run]
    print(f"{name:10s} shares {shares}; told, ms:", *(f"{one * 1e3:.1f}" for one in told), end="; ")
    print("stragglers:", *find_stragglers([[one] * 5 for one in told]).ranks or ["none"])

# %% [markdown] id=whole-answer
"""
*Diagnosis:* «equal shares»; all ranks have told the same seconds with the same samples, so the straggler finder names nobody. Where one rank is known to be slow, that itself is the sign. *Repair:* each rank's own work, without waiting: `model.seconds`, which ends when the last gradient has been sent off. The same mistake hides in a forward that waits, as with `SyncBatchNorm`. On a real clock `model.seconds` refuses such a model; time a copy without it (`measured`), and pass `speeds=`.

**Each rank's own limit** (silent in a loop of one's own). Each rank knows its own memory, and calls the function for shares with that. It does not know the others'.

**Predict.** Rank 0 has memory for 60 samples of 768, the others for any number. Each computes its range of the batch by itself. How many samples does nobody read, and how many are read twice?

<details><summary>Answer</summary>
Rank 0 takes 60, from the beginning. The others believe that rank 0 takes its proportion, 231, and begin behind that. So the 171 samples between are read by nobody, and none is read twice.
</details>
"""

# %% id=limits-apart topics=27.resource-aware
from dtcourse.heterogeneous import limits_of_all_ranks

own = [
    [60 if r == rank == 0 else BATCH for r in range(P)] for rank in range(P)
]  # by rank, what it knows
read = [
    place
    for rank in range(P)
    for place in places(proportional_shares(BATCH, SPEEDS, own[rank]))[rank]
]
print(
    f"read {len(read)} of {BATCH} samples: {BATCH - len(set(read))} by nobody, {len(read) - len(set(read))} twice"
)

# %% id=limits-run topics=27.resource-aware
def two_balances():
    """On a rank: what a balance says to limits that it alone knows, and its shares with everyone's."""
    try:
        Balance(BATCH, own[dist.get_rank()])
        said = "nothing"
    except ValueError as error:
        said = str(error)
    memory = 24e9 if dist.get_rank() == 0 else 100e9
    limits = limits_of_all_ranks(memory, fixed_bytes=18e9, sample_bytes=0.1e9)
    return said, limits, Balance(BATCH, limits).shares


said, limits, shares = launch(two_balances, P, **HOST)[0]
print(said)
print("with everyone's limits", limits, "on all ranks:", shares)

# %% [markdown] id=apart-answer
"""
*Diagnosis:* «171» samples are read by nobody, and a loop of one's own says nothing: each step trains on fewer samples than it believes. Count the samples that all ranks have read. *Repair:* gather the limits once, and give all ranks all of them (`limits_of_all_ranks`). `Balance` compares its settings when it is made, and names what differs.

## 9 · The real thing

PyTorch's DDP trains with unequal shares if the loss is weighted. This is all of it, without the course. The loss is a sum over a rank's samples, divided by those of all ranks; so a rank without samples is no case of its own.
"""

# %% id=plain topics=27.mixed-devices
from itertools import pairwise


class PlainBalance:
    """Shares by the ranks' own seconds, for a loop around PyTorch's DDP. Take this home."""

    def __init__(self, total):
        self.rank, self.p, self.total = dist.get_rank(), dist.get_world_size(), total
        self.shares = [total // self.p + (r < total % self.p) for r in range(self.p)]

    def backward(self, ddp, x, y):
        """This rank's part of a step; returns the seconds of its own forward. On a GPU, time it by events."""
        first, n = sum(self.shares[: self.rank]), self.shares[self.rank]
        began = time.perf_counter()
        loss = F.cross_entropy(ddp(x[first : first + n]), y[first : first + n], reduction="sum")
        seconds = time.perf_counter() - began
        (loss * self.p / self.total).backward()
        return seconds

    def after(self, median):
        """median: this rank's seconds per sample in the last steps. All ranks call it; every hundred steps, say."""
        known = [torch.zeros(1, dtype=torch.double) for _ in range(self.p)]
        dist.all_gather(known, torch.tensor([median], dtype=torch.double))
        speeds = [1 / float(one) for one in known]
        ends = [round(self.total * sum(speeds[:r]) / sum(speeds)) for r in range(self.p + 1)]
        self.shares = [end - start for start, end in pairwise(ends)]

# %% id=plain-run topics=27.mixed-devices
def plain_training(steps):
    """On a rank: shares, and the model. Speeds are given here, since this machine's are no evidence."""
    inner = small_model()
    model, optimizer = TorchDDP(inner), torch.optim.SGD(inner.parameters(), lr=0.3)
    balance = PlainBalance(10 * P)
    for step in range(steps):
        optimizer.zero_grad()
        balance.backward(model, *small_batch(step))
        optimizer.step()
        balance.after(1.0 / SPEEDS[dist.get_rank()])
    return balance.shares, vector_of(inner)

# %% id=plain-trained topics=27.mixed-devices
shares, found = launch(plain_training, P, 6, **HOST)[0]
off = ((found - ends["one process"]).norm() / found.norm()).item()
print(
    "shares",
    shares,
    "- difference from one process:",
    "below 1e-12" if off < 1e-12 else f"{off:.1e}",
)

# %% [markdown] id=real-table
"""
||the course|PyTorch|others|
|:--|:--|:--|:--|
|unequal batches|`WeightedDataParallel`|DDP and a weighted loss, as above|Accelerate's `even_batches`, on by default, makes the last batches equal by taking samples from the beginning again|
|a rank without samples|part of a step|with a sum, as above; `Join` is for ranks that have fewer *batches* ([lesson 07](../lessons/07-data-loading.ipynb))|-|
|batch norm|refused, or `SyncBatchNorm`, which counts samples|no error, each rank its own statistics|-|
|shares that follow speed|`Balance`|none|LB-BSP (Chen et al., 1806.02508), research code|
|stages|`MovingStages`|stages stay as they were cut|Megatron-LM: `--pipeline-model-parallel-layout`, fixed; Varuna (Athlur et al. 2022) cuts anew|
|layouts for unequal ranks|`planner.unequal.choose`|none|AMP (Li et al., 2210.07297), research code|
|tasks|`do_tasks`|none|Ray, Dask: a scheduler hands tasks out, and begins those of dead workers anew, a few times|

## 10 · Two questions about a cluster

**1.** Eight A100 and eight H100 share a batch of 1,024 (271.2 and 794.5 TFLOP/s are the fastest matrix products that were measured on them; see the course's table of published figures). What are the shares? How much longer than the ideal takes a step with equal shares, and one on the H100 alone?

**2.** A model of 70 billion parameters in 80 layers has 16 bytes of states per parameter, 20 stages, and links of 50 GB/s. One GPU becomes 1.2 times slower, or 1.5 times. Which layers should move, what is gained, and how long does a layer travel?

<details><summary>Answers, computed in the next cell</summary>

1. An H100 counts 2.93 A100s. Shares of 32.6 and 95.4 samples, so 33 and 95. Equal shares take 1.97 times the ideal; the H100 alone 1.34 times.
2. A stage has four layers. A GPU 1.2 times slower takes 4.8 units; with three layers 3.6, but then some other stage has five: 5 units. Nothing moves. At 1.5 it takes 6 units, and after one layer has moved the slowest has 5: a step is 1.2 times as quick. The layer's 14 GB travel for 0.28 s.

</details>
"""

# %% id=cluster topics=27.mixed-devices,27.dynamic-balance
from dtcourse.simulator.hardware import published

rates = published("hw_specs")["mamf_bf16_measured"]
ratio = rates["H100 SXM (=H200)"] / rates["A100 SXM"]
ideal = ideal_seconds(1024, [1.0] * 8 + [ratio] * 8)  # in seconds of a sample on an A100
print(f"1. {ratio:.2f} A100s; shares {ideal:.1f} and {ideal * ratio:.1f}", end="; ")
print(f"equal {64 / ideal:.2f}, H100 alone {128 / ratio / ideal:.2f} times the ideal")
for slower in (1.2, 1.5):
    stays, moves = 4 * slower, max(3 * slower, 5)
    print(f"2. {slower:g} times slower: {stays:.1f} units, {moves:.1f} with one layer moved")
print(f"   a layer: {70e9 / 80 * 16 / 1e9:.0f} GB, {70e9 / 80 * 16 / 50e9:.2f} s")

# %% [markdown] id=remember
"""
## What to remember

- How near do unequal ranks come to all work / all speed? With shares by measured speed, within a few percent of it and its messages, once the speeds are known. Whole samples, memory, and what no share relieves (messages, a slow optimizer) are the rest.
- Unequal shares need weighted losses: *p n*ᵣ / *N*. DDP alone trains another loss, without an error.
- Time each rank's own work. The time of a step says nothing: all ranks have the same.
- Shares that follow each measurement flap. Ask for a gain above a threshold and above the noise, seen more than once.
- When is the slow rank better left out? In our benchmark from twice as slow on, if only the first 20 steps count; at 5 times for about two thousand steps. Who measures first loses a step or so instead of several. Memory may force a slow rank in.
- Independent tasks: a queue, no measuring, and claims that outlive a rank.

## Exercises

`dtcourse start 27`, then `dtcourse check 27`:

1. **Two means in one backward**, each over other things, with unequal ranks.
2. **The quickest shares**, where a rank that takes part has its price.
3. **Which balance is broken, and how?**
4. **Choose** between sharing and leaving out, and how patient to be.

## Further

- Backup workers and late gradients, for ranks that are late by chance: [lesson 09](../lessons/09-stragglers-and-async.ipynb), [lesson 09b](../lessons/09b-asynchronous-training.ipynb).
- Fewer local steps for a slow rank: [lesson 10](../lessons/10-local-updates.ipynb); clients that all differ: [lesson 28](../lessons/28-federated.ipynb).
- Precision and kernels that differ between kinds of GPU: equal to one process then means up to rounding.

## Papers

Chen et al. 1806.02508, Semi-dynamic load balancing (SoCC 2020) · Blumofe and Leiserson 1999, work stealing (JACM) · Narayanan et al. 2019, PipeDream (SOSP) · Athlur et al. 2022, Varuna (EuroSys) · Li et al. 2210.07297, AMP.
"""
