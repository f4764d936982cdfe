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
DEVICE = None  # None: what this machine has; or "cpu", "cuda". Times here are emulated, so they need neither
BACKEND = None  # None: NCCL where every rank has its own GPU, else gloo
CLUSTER = None  # None: this machine; or "slurm": launches that are not emulated run as jobs of that cluster
SLOWER = 3.0  # by which factor the slow rank is slower

# %% id=question hidden
from dtcourse import plots
from dtcourse.launch import use_cluster

use_cluster(CLUSTER)

P = max(3, WORLD_SIZE)
SLOW = P - 2  # which rank is slow; benchmarks/heterogeneous.py takes each in turn
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
The **ideal time** is all work divided by all speed. No division of the work ends sooner, and leaving a rank out always takes longer than that. So in the picture nobody would ever leave a rank out. The picture leaves three things out: messages, whole samples, and the time until the shares are known.

## 1 · Unequal batches, one gradient

Four ranks share 40 samples. One of them is three times slower, so the shares are 12, 12, 4 and 12. Each rank takes the mean loss of its own samples, and DDP takes the mean of the ranks' gradients.

A model can show what each sample counts: it has one number per sample, the loss is the mean of these numbers, and so the gradient of a number is the weight of its sample.

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

torch.set_num_threads(1)  # small tensors: more threads only wait for each other
HOST = {"device": "cpu", "backend": "ring"}
SPEEDS = [1.0 if rank == SLOW else 3.0 for rank in range(P)]  # in any unit
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
for name, shares, weighted in (("DDP", EVEN, False), ("DDP", UNEVEN, False), ("weighted", UNEVEN, True)):
    gradient = launch(counts, P, shares, weighted, **HOST)[0]
    by_rank = [f"{gradient[part.start]:.4f}" for part in places(shares)]
    print(f"{name:8s} shares {shares}: a sample counts", ", ".join(by_rank), "by rank")

# %% [markdown] id=weights-answer
"""
Answer: (a) «0.0208», (b) «0.0625», (c) 0.025, which the weighted loss gives. DDP raises no error here: it takes the mean of the ranks, and it cannot know that their means stand for different numbers of samples. With equal shares both are the same.

So each rank multiplies its *loss* by *p n*ᵣ / *N*, where *n*ᵣ are its samples and *N* those of all ranks. It is the loss that is weighted and not the gradient, so several backwards add up, and a compression hook gets the right numbers. `WeightedDataParallel` does this, and it knows a rank that has no samples in a step: DDP would wait for its backward for ever.
"""

# %% id=show-weigh topics=27.mixed-devices
from dtcourse.course import show
from dtcourse.heterogeneous import WeightedDataParallel

show(WeightedDataParallel.weigh, docstring=False)

# %% [markdown] id=equal-predict
"""
**Predict.** Six steps of SGD on a small network, each with other shares: 12, 12, 4, 12; then one rank without samples; and so on. How far is it from one process on the whole batch, and how far is PyTorch's DDP where each rank has a sample: by rounding, by about a hundredth, or by more?

<details><summary>Answer</summary>
The weighted steps by rounding. DDP by more than a hundredth: in each step a part of the batch counts three times as much as the rest.
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

# %% id=training-run topics=27.mixed-devices
NOBODY_HERE = proportional_shares(10 * P, [1.0] * (P - 1)) + [0]  # the last rank has no samples


def weighted_training(all_shares):
    inner = small_model()
    model, optimizer = WeightedDataParallel(inner), torch.optim.SGD(inner.parameters(), lr=0.3)
    for step, shares in enumerate(all_shares):
        weighted_step(model, optimizer, *small_batch(step), places(shares)[dist.get_rank()])
    return nn.utils.parameters_to_vector(inner.parameters()).detach()


def torch_training(all_shares):
    inner = small_model()
    model, optimizer = TorchDDP(inner), torch.optim.SGD(inner.parameters(), lr=0.3)
    for step, shares in enumerate(all_shares):
        (x, y), mine = small_batch(step), places(shares)[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine.start : mine.stop]), y[mine.start : mine.stop]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(inner.parameters()).detach()

# %% id=training-compared topics=27.mixed-devices
def one_process(steps):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(steps):
        x, y = small_batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


right, moved = one_process(6), one_process(0)
for name, train, all_shares in (
    ("weighted", weighted_training, [UNEVEN, NOBODY_HERE] * 3),
    ("PyTorch's DDP, unequal shares", torch_training, [UNEVEN] * 6),
    ("PyTorch's DDP, equal shares", torch_training, [EVEN] * 6),
):
    found = launch(train, P, all_shares, **HOST)[0]
    off = ((found - right).norm() / (right - moved).norm()).item()
    print(f"{name:30s} off by {'rounding' if off < 1e-12 else f'{off:.0%}'} of the way that was trained")

# %% [markdown] id=shares-predict
"""
Answer: weighted by rounding, also with a rank that has nothing to do. DDP is off by «n %» of the way from the start.

**What this adds to the question.** With weighted losses shares are free: they change the time of a step, and nothing else.

## 2 · Shares by speed and by memory

Shares in proportion to speed let all ranks end together. Samples are whole, so each rank gets its proportion rounded down, and what is left over goes to the largest remainders.

**Predict.** 32 samples, speeds 3, 3, 1, 3 (samples per millisecond). (a) Which shares, and how long is the step beside the ideal 3.2 ms? (b) Rank 0 has memory for six samples only. Which shares now?

<details><summary>Answer</summary>
(a) 9.6, 9.6, 3.2, 9.6 are rounded down to 9, 9, 3, 9. Two are left over, for two of the three ranks with 0.6: 10, 10, 3, 9. The step takes 10/3 = 3.33 ms. (b) Six; the other 26 go by speed: 11.14, 3.71, 11.14. One is left over after rounding, and goes to the remainder 0.71, which is the slow rank's: 6, 11, 4, 11, and 4 ms.
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
    by_remainder = sorted(range(len(speeds)), key=lambda rank: shares[rank] - exact[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares

# %% id=my-shares-run topics=27.mixed-devices,27.resource-aware
from dtcourse.heterogeneous import ideal_seconds, samples_that_fit, step_seconds

speeds, none = [3, 3, 1, 3], [32] * 4
for limits in (none, [6, 32, 32, 32]):
    mine, ours = my_shares(32, speeds, limits), proportional_shares(32, speeds, limits)
    print(f"limits {limits}: {mine}, the course's {ours}: {step_seconds(ours, speeds):.2f} ms", end="")
    print(f", the ideal without limits {ideal_seconds(32, speeds):.2f} ms")
fits = samples_that_fit(0, 24e9, 18e9, 0.9e9)
print(f"24 GB, of which states take 18, at 0.9 GB per sample: {fits} samples")

# %% [markdown] id=measured-predict
"""
Answer: (a) 10, 10, 3, 9 and 3.33 ms; (b) 6, 11, 4, 11 and 4.00 ms. A limit in bytes becomes a limit in samples: what does not depend on the batch (parameters, gradients, optimizer states) is taken off, and the rest is divided by a sample's activations.

Where do speeds come from? From measuring: a data sheet does not know which rank is hot. `measured` does some work on each rank, and tells all ranks what everyone took.

From here on devices and network are emulated, on a virtual clock. An emulated device takes time by operations and bytes, and a rank that is three times slower is so in everything, its optimizer too. It does not know that small batches use a GPU badly; on a real one, time is not in proportion to samples, and what is measured at one share holds near that share alone.

**Predict** a step of 768 samples on four ranks, forward and backward and the messages: with equal shares, in proportion, and where rank 0 has memory for 100 samples. A message of *n* bytes takes 5 µs + *n* / (1.25 GB/s), and a ring has 2 (*p* − 1) of them, each with a *p*-th of the gradients: 0.36 ms. The ideal is about 2 ms.

<details><summary>Answer</summary>
Equal: 192 samples at the slow rank's speed. In proportion it has 77 of 768, so 77/192 of that. With the limit the other three share 668 at speeds 3, 1, 3: the slow one has 95, so 95/192. To each 0.36 ms for messages.
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


NBYTES = sum(8 * p.numel() for p in build().parameters())
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


def with_shares(all_shares):
    """On a rank: everyone's speed, and for each of these shares the seconds of a step."""
    inner, (x, y) = build(), batch(0)
    known = measured(lambda: F.cross_entropy(inner(x), y).backward(), BATCH, repeats=1)
    found = []
    for shares in all_shares:
        model, mine = WeightedDataParallel(build()), places(shares)[dist.get_rank()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        took = seconds_of(3, lambda x, y: weighted_step(model, optimizer, x, y, mine))  # noqa: B023
        found.append(took[-1])
    return [one.speed for one in known], found

# %% id=timed-run topics=27.mixed-devices,27.resource-aware
LIMITS = [100] + [BATCH] * (P - 1)
chosen = {
    "equal": [BATCH // P] * P,
    "in proportion": proportional_shares(BATCH, SPEEDS),
    "and rank 0 holds 100": proportional_shares(BATCH, SPEEDS, LIMITS),
}
measured_speeds, found = launch(with_shares, P, list(chosen.values()), **EMULATED)[0]
print("measured, samples per ms:", *(f"{speed / 1e3:.0f}" for speed in measured_speeds))
print(f"ideal {ideal_seconds(BATCH, measured_speeds) * 1e3:.2f} ms, messages {MESSAGES * 1e3:.2f} ms")
rows = []
for (name, shares), took in zip(chosen.items(), found, strict=True):
    work = step_seconds(shares, measured_speeds)
    predicted = work + MESSAGES
    rows.append((name, str(shares), work * 1e3, predicted * 1e3, took * 1e3, took / predicted))
header = ["", "shares", "work, ms", "and messages", "measured", "ratio"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[2:], "{:.2f}"))

# %% [markdown] id=flap-predict
"""
Answer: «5.4», «2.4» and «n» ms are predicted, and «n», «n» and «n» are measured. What is left over are the barriers, the number of samples that each rank tells the others before a step, and the optimizer: the slow rank's takes three times as long, and no share relieves it of that.

So here the ideal that a step can reach is the ideal work *and* the messages, «2.4» ms. Beside the work alone, 2.0 ms, every division is 20 % too slow.

**What this adds to the question.** Shares in proportion to measured speed come within «n %» of the ideal with its messages. Memory is a bound like speed: what one rank cannot hold, the others take by their speeds.

## 3 · A balance that moves

Speeds change: a GPU gets hot, another job comes and goes. So shares follow what was measured. But each measurement has noise, and shares that follow noise never rest: they **flap**.

Each rank's seconds vary by 5 % from step to step, and nothing else changes. After each step my balance takes the shares that would have been best for it, if these promise a gain of more than a threshold.

**Predict** for 200 steps. (a) How often does it move with threshold 0: never, about 20 times, nearly always? (b) And with a threshold of 5 %, and of 20 %? (c) What do all these moves cost in the time of a step: nothing, about 2 %, about 10 %?

<details><summary>Answer</summary>
(a) Nearly always: some division is always a little better for the last step. (b) Less; at 20 % hardly, and then it does not see a rank that has become 15 % slower either. (c) About 2 %: shares that follow the last step's noise add that noise to the next step's.
</details>
"""

# %% id=my-balance topics=27.dynamic-balance
import random
import statistics


def my_balance(threshold, seed, noise=0.05, steps=200):
    """How often shares move, and the mean step over the ideal one. They follow the step before."""
    draw, moves, took = random.Random(seed), 0, []
    shares = proportional_shares(BATCH, SPEEDS)
    for _ in range(steps):
        seconds = [n / speed * draw.lognormvariate(0, noise) for n, speed in zip(shares, SPEEDS, strict=True)]
        took.append(max(seconds))
        known = [n / s for n, s in zip(shares, seconds, strict=True)]
        better = proportional_shares(BATCH, known, least=1)
        if step_seconds(shares, known) / step_seconds(better, known) - 1 > threshold:
            shares, moves = better, moves + 1
    return moves, statistics.mean(took) / ideal_seconds(BATCH, SPEEDS)

# %% id=with-rule topics=27.dynamic-balance
from dtcourse.heterogeneous import Hysteresis, Meter


def with_the_rule(seed, noise=0.05, steps=200):
    """The same with medians of seven steps, and the course's rule."""
    draw, moves, took = random.Random(seed), 0, []
    shares, rule = proportional_shares(BATCH, SPEEDS), Hysteresis(threshold=0.05, patience=2)
    meters = [Meter(window=7) for _ in SPEEDS]
    for _ in range(steps):
        seconds = [n / speed * draw.lognormvariate(0, noise) for n, speed in zip(shares, SPEEDS, strict=True)]
        took.append(max(seconds))
        for meter, spent, n in zip(meters, seconds, shares, strict=True):
            meter.add(spent, n)
        known = [meter.capability() for meter in meters]
        speeds = [one.speed for one in known]
        better = proportional_shares(BATCH, speeds, least=1)
        now, then = step_seconds(shares, speeds), step_seconds(better, speeds)
        if known[0].number >= 3 and rule.moves(now, then, known):
            shares, moves = better, moves + 1
            for meter in meters:
                meter.clear()
    return moves, statistics.mean(took) / ideal_seconds(BATCH, SPEEDS)

# %% id=flap-run topics=27.dynamic-balance
ways = {f"last step, threshold {t:.0%}": lambda seed, t=t: my_balance(t, seed) for t in (0.0, 0.05, 0.2)}
ways |= {"never moves": lambda seed: my_balance(float("inf"), seed), "median of 7, and the rule": with_the_rule}
rows = []
for name, way in ways.items():
    moves, over = zip(*(way(seed) for seed in range(8)), strict=True)
    rows.append((name, statistics.mean(moves), min(moves), max(moves), statistics.mean(over)))
header = ["8 seeds, 200 steps each", "moves", "fewest", "most", "step / ideal"]
plots.table(rows, columns=header, formats={header[-1]: "{:.3f}", "moves": "{:.1f}"})

# %% [markdown] id=flap-answer
"""
Answer: (a) «n» of 200. (b) «n» with 5 % and «n» with 20 %. (c) «n» against «n» of the ideal where nothing moves. (A step is above the ideal even then: it takes as long as the slowest of the ranks, and the slowest of several noisy times is above their mean.)

So flapping costs little where only shares of a batch move. It is not always so cheap: where each rank reads its own part of the data, other samples mean cold caches; and where a layer moves with its optimizer's states, a move may cost more than a step (section 5). The course's rule moves «n» times. It asks for a gain that is

- larger than the threshold and two standard errors of what was measured: noise makes it slower to move, and not restless;
- seen twice in a row (`patience`): an outlier moves nothing.
"""

# %% id=show-hysteresis topics=27.dynamic-balance
show(Hysteresis.moves)

# %% [markdown] id=changing-predict
"""
What patience costs is time. `Balance` begins with equal shares, and moves at the earliest when it has three measurements of the same shares (`settle`). It takes medians of the last seven steps.

**Predict.** The slow rank is slow from the first step, number 0. In step 20 it recovers, and another rank becomes three times slower. After which steps do shares move, if there is no noise?

<details><summary>Answer</summary>
After step 2 there are three measurements, and the gain is seen once; after step 3 twice: it moves. From step 20 on the median of seven is new when four of them are: after step 23, and once more after step 24. So after steps 3 and 24. A shorter window is quicker, and weaker against outliers.
</details>
"""

# %% id=changing topics=27.dynamic-balance
from dtcourse.heterogeneous import Balance


def changing(steps=40, change=20):
    """On a rank: the shares of each step, and after which steps they moved. Work is slept, on the virtual clock."""
    rank, balance, found = dist.get_rank(), Balance(BATCH), []
    for step in range(steps):
        slow = SLOW if step < change else 0
        found.append(list(balance.shares))
        began = emulation.now()
        emulation.sleep((30e-6 if rank == slow else 10e-6) * len(balance.mine))
        balance.after(emulation.now() - began)
    return found, balance.moved


shares, moved = launch(changing, P, network=NETWORK, clock="virtual", **HOST)[0]
print("moved after steps", moved, "- shares:", shares[0], "then", shares[10], "then", shares[-1])
plots.curves(
    {f"rank {rank}": (range(len(shares)), [one[rank] for one in shares]) for rank in range(P)},
    xlabel="step", ylabel="samples", title="Shares follow speed: the slow rank changes in step 20",
)  # fmt: skip

# %% [markdown] id=drop-predict
"""
Answer: after steps «[3, 24]». Five steps are taken with the wrong shares after each change, and here a wrong step takes 2.5 times as long as a right one.

**What this adds to the question.** Shares can follow speeds that change. It takes some steps to know, and the more noise there is, the more.

## 4 · Balance it, or leave it out?

The picture at the top says that sharing is always quicker than leaving the slow rank out: at a factor of 3 by a tenth, 1/(3 + 1/3) against 1/3. Here are all ways on the same job, 20 steps from the start: PyTorch's DDP with equal shares; DDP on the other ranks alone; the balance, which begins with equal shares; and the balance that measures first (`speeds=`).

**Predict.** (a) Order the four by the mean of all 20 steps. (b) And by the last ten.

<details><summary>Answer</summary>
(b) Both balances, then the other ranks alone, then DDP. (a) The balance that measures first; then, perhaps against what one expects, the other ranks alone: the first four steps of the balance are as slow as DDP's, and 20 steps are too few to earn that back. The table says it.
</details>
"""

# %% id=ways topics=27.dynamic-balance
def balanced(steps, speeds=None):
    """On a rank: seconds of each step. speeds: of all ranks, where they are known before the first step."""
    model, balance = WeightedDataParallel(build()), Balance(BATCH, speeds=speeds)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def do_step(x, y):
        weighted_step(model, optimizer, x, y, balance.mine)
        balance.after(model.seconds)

    return seconds_of(steps, do_step)


def equal_shares(steps, ranks):
    """On a rank: seconds of each step of PyTorch's DDP on these ranks alone."""
    group, rank = dist.new_group(ranks), dist.get_rank()
    if rank not in ranks:
        return seconds_of(steps, lambda x, y: None)
    inner = build()
    model = TorchDDP(inner, process_group=group)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    mine = places(proportional_shares(BATCH, [1.0] * len(ranks)))[ranks.index(rank)]

    def do_step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine.start : mine.stop]), y[mine.start : mine.stop]).backward()
        optimizer.step()

    return seconds_of(steps, do_step)

# %% id=ways-run topics=27.dynamic-balance
def four_ways(steps, known):
    """On a rank, by way: seconds of each step."""
    everyone = list(range(dist.get_world_size()))
    return {
        "PyTorch's DDP": equal_shares(steps, everyone),
        "DDP without the slow rank": equal_shares(steps, [r for r in everyone if r != SLOW]),
        "balance": balanced(steps),
        "balance, measured first": balanced(steps, known),
    }


found = launch(four_ways, P, 20, measured_speeds, **EMULATED)[0]
bound = ideal_seconds(BATCH, measured_speeds) + MESSAGES
rows = [
    (name, statistics.mean(took) * 1e3, statistics.mean(took[10:]) * 1e3, statistics.mean(took[10:]) / bound)
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
Answer: (a) «balance, measured first n ms; DDP without the slow rank n; balance n; DDP n». (b) «n, n, n, n». So the balance wins in the end, and by little: at a factor of 3 the slow rank adds a tenth of the others' speed.

`benchmarks/heterogeneous.py` ran the same job at five factors, with each rank as the slow one in turn. Its balance begins with equal shares.

**Predict** from which factor on, over all of the first 20 steps, leaving the slow rank out wins: 1.5, 2, 3 or 5? And after how many steps has the balance caught up, at 2, 3 and 5: tens, hundreds, thousands?

<details><summary>Answer</summary>
From 2 on. The table computes the steps: what the balance lost at the start, divided by what it gains per step afterwards. The slower the rank, the more is lost at first, and the less it can add afterwards: both make it longer.
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
    gain = settled["dropping"] - settled["ours"]
    lost = 20 * (everything["ours"] - settled["ours"])  # over 20 steps
    rows.append(
        (factor, *(settled[way] for way in ("ideal", "DDP", "dropping", "ours")), everything["ours"], lost / gain)
    )
print(BENCH["what"])
header = ["slower", "ideal", "DDP", "dropping", "ours, settled", "ours, all 20", "steps to catch up"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[1:6], "{:.2f}") | {header[6]: "{:.0f}"})

# %% [markdown] id=bench-answer
"""
Answer: from a factor of 2 on: 2.65 ms against 2.59 over the first 20 steps, at 5 it is 3.83 against 2.59. The balance has caught up after «25» steps at 2, after «101» at 3, and after «about 1,900» at 5, where it gains half a percent. So:

- at 1.5 balance at once;
- at 2 or 3 balance a run that has hundreds of steps, or measure first;
- at 5 leave the rank out, unless its memory is needed: what it adds is lost in the smallest trouble.

"Ideal" in this table is work alone. Ours is 23 to 26 % above it; messages, which each way pays, are most of that (about 0.36 of 0.46 ms at 3). This is one model on one network. A larger model with the same batch has more messages, so it gains less; a larger batch has relatively fewer.

**What this adds to the question.** The nearer the slow rank is to the others, the more it adds and the sooner. A rank five times slower is better left out, or given other work (section 7).

## 5 · Stages that move

In a pipeline the unit is a layer. A pipeline is as slow as its slowest stage, so layers go to the ranks in proportion to speed, in whole layers.

**Predict** for 20 equal layers on four ranks, of which rank 2 is three times slower: (a) the best cut; (b) which layers move from 5, 5, 5, 5 to there; (c) the step before and after, of eight micro-batches, in units of one layer's micro-batch on a fast rank. (The slowest stage works on all eight; the others add theirs once.)

<details><summary>Answer</summary>
(a) 6, 6, 2, 6: each stage takes 6. (b) Layer 5 from rank 1 to 0, layers 10 and 11 from rank 2 to 1, layer 14 from rank 2 to 3: four layers. (c) 8 · 15 + 15 = 135, and 8 · 6 + 18 = 66.
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


def half_batch(step):
    x, y = batch(step)
    return x[: BATCH // 2], y[: BATCH // 2]


def moving_run(steps):
    """On a rank: by step, the layers of each stage, seconds, and bytes sent by `after`; and the trained model."""
    moving = MovingStages(many_layers(), one_f_one_b(dist.get_world_size(), MICRO), F.cross_entropy)
    optimizer, found = torch.optim.Adam(moving.module.parameters(), lr=1e-3), []
    for step in range(steps):
        dist.barrier()
        began, sizes = emulation.now(), [len(one) for one in moving.ranges]
        optimizer.zero_grad()
        moving.step(*half_batch(step))
        optimizer.step()
        dist.barrier()
        took = emulation.now() - began
        optimizer.zero_grad()
        with traffic.counting() as sent:
            moving.after(optimizer)
        found.append((sizes, took, sent.bytes_sent()))
    return found, moving.moved, full_state_dict(moving.module)

# %% id=stages-run topics=27.dynamic-balance
def alone(steps):
    model = nn.Sequential(*many_layers())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        x, y = half_batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


run = launch(moving_run, P, 6, **EMULATED)
found, moved, state = run[0]
right = alone(6)
error = max((state[name] - value).abs().max().item() for name, value in right.items())
print("moved after steps", moved, end="; ")
print("the model's difference from one process:", "below 1e-9" if error < 1e-9 else f"{error:.1e}")
(before, slow_step, _), (after, quick_step, _) = found[0], found[-1]
sent = sum(rank[0][moved[0]][2] for rank in run)
print(f"layers {before}: {slow_step * 1e3:.1f} ms; layers {after}: {quick_step * 1e3:.1f} ms", end="; ")
print(f"ratio {slow_step / quick_step:.2f}, predicted {135 / 66:.2f} with 4 ranks")
layer = sum(8 * p.numel() for p in nn.Linear(WIDTH, WIDTH).parameters())
states = 4 * 3 * layer
print(f"sent when it moved: {sent:,} bytes; 4 layers with Adam's states {states:,}: {sent / states:.3f}")

# %% [markdown] id=stages-answer
"""
Answer: (a) «6, 6, 2, 6». (b) «n» bytes, of which four layers with both of Adam's states are all but «n %»; names and shapes are the rest. (c) «n» against «n» ms: «n» times as quick, 2.05 predicted. The model is one process's: a layer takes along its parameters, its buffers and its optimizer's states.

A move costs bytes once, and each step gains. Here the move takes «n» steps' time on this network, and pays after one. But a layer is a coarse unit: with five layers per stage nothing can be gained before a rank is a fifth slower, since some other rank would have to take six.

How a rank's speed is known: it measures its own forwards, which wait for nobody.
"""

# %% id=show-after topics=27.dynamic-balance
show(MovingStages.after, docstring=False)

# %% [markdown] id=layout-predict
"""
**What this adds to the question.** In a pipeline shares are layers. They move with all that belongs to them, and a move has its price.

## 6 · A layout for unequal ranks

With several techniques the choice is larger: which ranks, how many copies of the model, how many stages, which layers and samples for whom. Two things decide, what each rank was measured to do, and what its memory holds.

Two new GPUs with 80 GB and 0.1 s per sample, two old ones with 32 GB and 0.3 s. The model has twelve equal layers, each with 4 GB of states, 0.25 GB of activations per sample, 0.05 GB of output per sample, 1 GB of gradients. The batch has 64 samples in eight micro-batches, links carry 12.5 GB/s.

**Predict.** Which fits, and which of these is the quickest: (a) four copies of the model; (b) two copies, on the new GPUs alone; (c) two copies of two stages, each on a new and an old GPU; (d) one pipeline of four stages?

<details><summary>Answer</summary>
(a) does not fit: 48 GB of states on a card of 32. (c) is the quickest: nine layers on a new GPU and three on an old one take the same time. (b) comes next, since it leaves out a quarter of the speed; (d) is last: its bubble has three slots, its messages are large, and whole layers do not divide evenly.
</details>
"""

# %% id=my-layout topics=27.adaptive-parallelism,27.resource-aware
GB, LINK, CARDS = 1e9, 12.5e9, (80e9, 80e9, 32e9, 32e9)
LAYER = {"states": 4 * GB, "activations": 0.25 * GB, "outputs": 0.05 * GB, "gradients": 1 * GB}
SECONDS = (0.1, 0.1, 0.3, 0.3)  # of a sample through the whole model


def my_layout(stages, cuts, share, m=8):
    """Seconds of a step, and whether it fits. stages: by copy, the rank of each stage; share: samples of a copy."""
    dp, pp, slowest, fits = len(stages), len(cuts), 0.0, True
    for copy in stages:
        for s, (rank, layers) in enumerate(zip(copy, cuts, strict=True)):
            message = 2 * LAYER["outputs"] / LINK if s < pp - 1 else 0.0
            slowest = max(slowest, share / m * (layers / sum(cuts) * SECONDS[rank] + message))
            under_way = share / m * min(m, pp - s)
            fits &= layers * (LAYER["states"] + under_way * LAYER["activations"]) <= CARDS[rank]
    reduce = 2 * (dp - 1) / dp * max(cuts) * LAYER["gradients"] / LINK
    return (m + pp - 1) * slowest + reduce, fits

# %% id=my-layout-run topics=27.adaptive-parallelism,27.resource-aware
for name, asked in {
    "(a) four copies": (((0,), (1,), (2,), (3,)), (12,), 16),
    "(b) the new ones": (((0,), (1,)), (12,), 32),
    "(c) two of two": (((0, 2), (1, 3)), (9, 3), 32),
    "(d) one of four": (((0, 1, 2, 3),), (5, 4, 2, 1), 64),
    "(d) cut otherwise": (((0, 1, 2, 3),), (5, 5, 1, 1), 64),
}.items():
    seconds, fits = my_layout(*asked)
    print(f"{name:18s} {seconds:.2f} s, {'fits' if fits else 'does not fit'}")

# %% [markdown] id=choose-predict
"""
Answer: (a) does not fit, with unequal shares neither. (c) «3.7» s, (b) «4.2», (d) «4.4 and more». `choose` of the planner tries orders, cuts and shares, and keeps what fits.

**Predict.** The old GPUs become slower: 4, 6 times slower than the new ones. (a) From where on does the best layout leave them out? (b) And at 6, if the new ones have 48 GB, or 40?

<details><summary>Answer</summary>
(a) At 6: an old GPU then holds up the others even with one layer or two, and the copies of nine or ten layers have more gradients to send than they save. (b) With 48 GB the new ones hold the model as a pipeline of two stages, six layers each with two micro-batches under way: 6 · (4 + 2 · 8 · 0.25) = 48 GB. With 40 GB they do not, so an old GPU takes a layer, however slow it is.
</details>
"""

# %% id=choose topics=27.adaptive-parallelism,27.resource-aware
from dtcourse.planner.unequal import choose
from dtcourse.planner.unequal_work import Work

WORK = Work([1.0] * 12, *([LAYER[name]] * 12 for name in LAYER))
rows = []
for factor, new in ((2, 80), (3, 80), (4, 80), (6, 80), (6, 48), (6, 40)):
    seconds = [0.1, 0.1, 0.1 * factor, 0.1 * factor]
    memory = [new * GB, new * GB, *CARDS[2:]]
    best = choose(WORK, seconds, memory, batch=64, micro_batches=8, bandwidth=LINK)[0]
    cuts = [len(chosen) for chosen in best.ranges]
    held = max(best.memory.values()) / GB
    rows.append((factor, new, str(best.stages), str(cuts), str(best.shares), held, best.seconds))
header = ["old slower", "new, GB", "ranks of each copy", "layers", "samples", "fullest, GB", "seconds"]
plots.table(rows, columns=header, formats={"seconds": "{:.2f}", header[5]: "{:.0f}"})

# %% id=choose-picture hidden topics=27.adaptive-parallelism
by_factor = [1 + 0.5 * n for n in range(13)]


def best_of(factor, old_too):
    """Seconds of the best layout, with the old GPUs or without them."""
    seconds, memory = [0.1, 0.1, 0.1 * factor, 0.1 * factor], list(CARDS)
    used = 4 if old_too else 2
    return choose(WORK, seconds[:used], memory[:used], 64, 8, LINK)[0].seconds


plots.curves(
    {
        "all four may be used": (by_factor, [best_of(f, True) for f in by_factor]),
        "the two new ones alone": (by_factor, [best_of(f, False) for f in by_factor]),
    },
    xlabel="how many times slower the two old GPUs are", ylabel="predicted seconds of a step",
    title="Where old GPUs stop being of use",
)  # fmt: skip

# %% [markdown] id=choose-answer
"""
Answer: «(c) with 9 and 3 layers at 3 times, 10 and 2 at 4: 4.09 s; at 6 the new ones alone, 4.16 s; with 48 GB a pipeline of the two new ones, 4.18 s; with 40 GB one of three stages, the first on an old GPU with one layer, 4.64 s». The formula has no overlap, no optimizer and no latency, so it ranks layouts; it does not say seconds to the digit. Section 5 held its pipeline term to a run.

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
from pathlib import Path


def a_file():
    return str(Path(tempfile.mkdtemp()) / "tasks")


def my_queue(work, number, path):
    """On a rank: {task: result} of the tasks that it took. The queue is one number, in a file that all can add to."""
    store, found = dist.FileStore(path, -1), {}
    while (task := store.add("taken", 1) - 1) < number:
        found[task] = work(task)
    return found


def twelve_each(work, number, _path):
    rank, p = dist.get_rank(), dist.get_world_size()
    return {task: work(task) for task in range(rank * number // p, (rank + 1) * number // p)}

# %% id=my-queue-run topics=27.work-stealing tags=nbval-ignore-output reason="who is free first, and when, is never the same twice"
from dtcourse.heterogeneous import do_tasks


def taking(way, number, path, seconds=0.01):
    """On a rank: the seconds until all tasks are done, and how many this rank did."""
    rank = dist.get_rank()

    def work(task):
        emulation.sleep(seconds * (SLOWER if rank == SLOW else 1))
        return task**2

    dist.barrier()
    began = emulation.now()
    if way == "do_tasks":
        mine = do_tasks(work, range(number)).by.count(rank)
    else:
        mine = len({"my queue": my_queue, "as many each": twelve_each}[way](work, number, path))
    dist.barrier()
    return emulation.now() - began, mine


number = 12 * P
ideal = number * 0.01 / (P - 1 + 1 / SLOWER)
print(f"ideal {ideal * 1e3:.0f} ms, and one task of the slow rank {SLOWER * 10:.0f} ms")
for way in ("as many each", "my queue", "do_tasks"):
    run = launch(taking, P, way, number, a_file(), devices=EmulatedDevice(), clock="wall", **HOST)
    print(f"{way:13s} {run[0][0] * 1e3:4.0f} ms; tasks by rank", *(mine for _, mine in run))

# %% [markdown] id=die-predict
"""
Answer: (a) 360 ms and a little; (b) and (c) between 144 and 174 ms, and what this machine adds. (What arrives first decides here, so the costs are slept on the real clock, and the times are not the same twice.)

One number that all ranks add to is one place that all ranks ask. With many ranks and short tasks that is what they wait for. **Work stealing** gives each rank a queue of its own; a rank whose queue is empty takes from the back of the fullest one. `do_tasks` does that.

**Predict.** A rank is killed in its first task. How many of 48 results are missing in the end (a) with my queue, (b) with `do_tasks`? Where would (b) know from?

<details><summary>Answer</summary>
(a) One: its task was taken, and nobody does it again; what it had finished before would be lost with it, too, as results stay on their rank. (b) None. A rank writes that it begins a task before it does, in a store that no rank holds, and the results go there. A begun task of a dead rank is begun again.
</details>
"""

# %% id=die topics=27.work-stealing
import os
import signal

from dtcourse.launch import RankFailure


def dying(way, number, path):
    """On a rank: what became of the tasks. The slow rank is killed in its first one."""
    rank = dist.get_rank()

    def work(task):
        emulation.sleep(0.005)
        if rank == SLOW:
            os.kill(os.getpid(), signal.SIGKILL)
        return task**2

    return do_tasks(work, range(number)) if way == "do_tasks" else my_queue(work, number, path)


for way in ("my queue", "do_tasks"):
    run = launch(dying, P, way, number, a_file(), on_failure="continue", **HOST)
    left = [one for one in run if not isinstance(one, RankFailure)]
    if way == "my queue":
        have, again = set().union(*left), 0
    else:
        have, again = set(range(number)) - set(left[0].unfinished), len(left[0].again)
    print(f"{way:9s} {P - len(left)} rank died; {number - len(have)} of {number} results missing, {again} done again")

# %% [markdown] id=die-answer
"""
Answer: (a) «1» missing, (b) «0», and «1» task was done again. A task that kills whoever does it is given up after two ranks (`attempts`), and says so. Training is no such task: a step needs all ranks' gradients, so a dead rank there is a matter of [lesson 25c](../lessons/25c-without-a-restart.ipynb).

How a rank comes by its next task: from the queues first; when they are empty, it looks whether a rank that has died had begun one of those that are left.
"""

# %% id=show-take topics=27.work-stealing
from dtcourse.heterogeneous.task_board import TaskBoard

show(TaskBoard.take)

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
    """On a rank: the shares in the end, and what this rank told the balance in the first step."""
    rank, balance, told = dist.get_rank(), Balance(BATCH), []
    for _ in range(steps):
        began = emulation.now()
        emulation.sleep((30e-6 if rank == SLOW else 10e-6) * len(balance.mine))
        own = emulation.now() - began
        dist.all_reduce(torch.zeros(1))  # the gradients: everybody waits here
        told.append(emulation.now() - began if whole else own)
        balance.after(told[-1])
    return balance.shares, told[0]


for whole in (True, False):
    run = launch(fed_with, P, whole, network=NETWORK, clock="virtual", **HOST)
    told = [first for _, first in run]
    name = "whole step" if whole else "own work"
    print(f"{name:10s} shares {run[0][0]}; told, ms:", *(f"{one * 1e3:.2f}" for one in told), end="; ")
    print("stragglers:", find_stragglers([[one] * 5 for one in told]).ranks)

# %% [markdown] id=whole-answer
"""
*Diagnosis:* «equal shares»; all ranks have told the same seconds with the same samples, so the straggler finder names nobody. Where one rank is known to be slow, that itself is the sign. *Repair:* each rank's own work, without waiting: `model.seconds`, which ends when the last gradient has been sent off. The same mistake hides in a forward that waits, as with `SyncBatchNorm`: then time the part that does not.

**Each rank's own limit** (silent in a loop of one's own). Each rank knows its own memory, and calls the function for shares with that; it does not know the others'.

**Predict.** Rank 0 has memory for 60 samples of 768, the others for any number. Each computes its range of the batch by itself. How many samples does nobody read, and how many are read twice?

<details><summary>Answer</summary>
Rank 0 takes 60, from the beginning. The others believe that rank 0 takes its proportion, 230 or so, and begin behind that. So the 170 samples between are read by nobody, and none is read twice.
</details>
"""

# %% id=limits-apart topics=27.resource-aware
from dtcourse.course import expect_error

memory = [60] + [BATCH] * (P - 1)
own = [[memory[rank] if r == rank else BATCH for r in range(P)] for rank in range(P)]
read = [place for rank in range(P) for place in places(proportional_shares(BATCH, SPEEDS, own[rank]))[rank]]
print(f"read {len(read)} of {BATCH} samples: {BATCH - len(set(read))} by nobody, {len(read) - len(set(read))} twice")


def agreed(limits_of):
    return Balance(BATCH, limits_of[dist.get_rank()]).shares


with expect_error((ValueError, RankFailure), match="limits"):
    launch(agreed, P, own, **HOST)
print("with everyone's limits on all ranks:", launch(agreed, P, [memory] * P, **HOST)[0])

# %% [markdown] id=apart-answer
"""
*Diagnosis:* «n» samples by nobody, and a loop of one's own says nothing: each step trains on fewer samples than it believes. Count the samples that all ranks have read. *Repair:* gather the limits once, and give all ranks all of them. `Balance` compares its settings when it is made, and names what differs.

## 9 · The real thing

PyTorch's DDP trains with unequal shares if the loss is weighted. This is all of it, without the course:
"""

# %% id=plain topics=27.mixed-devices
import time


class PlainBalance:
    """Shares by the ranks' own seconds, for a loop around PyTorch's DDP. Take this home."""

    def __init__(self, total):
        self.rank, self.p = dist.get_rank(), dist.get_world_size()
        self.shares = [total // self.p + (r < total % self.p) for r in range(self.p)]

    def backward(self, ddp, loss_of, x, y):
        """This rank's part of a step; returns the seconds of its own forward. On a GPU, time it by events."""
        first, n = sum(self.shares[: self.rank]), self.shares[self.rank]
        began = time.perf_counter()
        loss = loss_of(ddp(x[first : first + n]), y[first : first + n])
        seconds = time.perf_counter() - began
        (loss * self.p * n / sum(self.shares)).backward()
        return seconds

    def after(self, medians):
        """medians: this rank's seconds per sample, of the last steps. All ranks call it; every hundred steps, say."""
        known = [torch.zeros(1, dtype=torch.double) for _ in range(self.p)]
        dist.all_gather(known, torch.tensor([medians], dtype=torch.double))
        total, speeds = sum(self.shares), [1 / float(one) for one in known]
        ends = [round(total * sum(speeds[: r + 1]) / sum(speeds)) for r in range(self.p)]
        self.shares = [end - start for start, end in zip([0, *ends], ends)]

# %% id=plain-run topics=27.mixed-devices
def plain_training(steps):
    """On a rank: shares and weights. Speeds are given here, since this machine's are no evidence."""
    inner = small_model()
    model, optimizer = TorchDDP(inner), torch.optim.SGD(inner.parameters(), lr=0.3)
    balance = PlainBalance(10 * P)
    for step in range(steps):
        optimizer.zero_grad()
        balance.backward(model, F.cross_entropy, *small_batch(step))
        optimizer.step()
        balance.after(1.0 / SPEEDS[dist.get_rank()])
    return balance.shares, nn.utils.parameters_to_vector(inner.parameters()).detach()


shares, found = launch(plain_training, P, 6, **HOST)[0]
right = one_process(6)
off = ((found - right).norm() / right.norm()).item()
print("shares", shares, "- difference from one process:", "below 1e-12" if off < 1e-12 else f"{off:.1e}")

# %% [markdown] id=real-table
"""
||the course|PyTorch|others|
|:--|:--|:--|:--|
|unequal batches|`WeightedDataParallel`|DDP and a weighted loss, as above|Accelerate's `even_batches` makes shares equal again, by repeating samples|
|a rank without samples|part of a step|`Join`, for ranks that have fewer *batches* ([lesson 07](../lessons/07-data-loading.ipynb)): those that are done|-|
|batch norm|refused, or `SyncBatchNorm`, which counts samples|no error, each rank its own statistics|-|
|shares that follow speed|`Balance`|none|LB-BSP (Chen et al. 2020), a study|
|stages|`MovingStages`|stages stay as they were cut|Megatron-LM: fewer layers for first and last stage, fixed; Varuna (Athlur et al. 2022) cuts anew|
|layouts for unequal ranks|`planner.unequal.choose`|none|AMP (Li et al. 2022), a study|
|tasks|`do_tasks`|none|Ray, Dask: a scheduler hands tasks out, and begins those of dead workers anew|

## 10 · Two questions about a cluster

**1.** Eight A100 and eight H100 share a batch of 1,024 (271.2 and 794.5 TFLOP/s are the fastest matrix products that were measured on them). What are the shares? How much longer than the ideal takes a step with equal shares, and one on the H100 alone?

**2.** The model of [lesson 17](../lessons/17-layers-and-pipelines.ipynb): 70 billion parameters in 80 layers, 16 bytes of states per parameter, 20 stages, links of 50 GB/s. One GPU becomes 1.2 times slower, or 1.5 times. Which layers should move, what is gained, and how long does a layer travel?

<details><summary>Answers, computed in the next cell</summary>

1. An H100 counts 2.93 A100s. Shares of 32.6 and 95.4 samples, so 33 and 95 or so. Equal shares take 1.97 times the ideal; the H100 alone 1.34 times.
2. A stage has four layers. A GPU 1.2 times slower takes 4.8 units; with three layers 3.6, but then some other stage has five: 5 units. Nothing moves. At 1.5 it takes 6 units, and after one layer has moved the slowest has 5: a step is 1.2 times as quick. The layer's 14 GB travel for 0.28 s, far less than one step of such a model.

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

- How near do unequal ranks come to all work / all speed? With shares by measured speed, within a few percent of it and its messages, once the shares are known. Whole samples, memory, and what no share relieves (messages, a slow optimizer) are the rest.
- Unequal shares need weighted losses: *p n*ᵣ / *N*. DDP alone trains another loss, without an error.
- Time each rank's own work. The time of a step says nothing: all ranks have the same.
- Shares that follow each measurement flap. Ask for a gain above a threshold and above the noise, seen more than once.
- When is the slow rank better left out? In our benchmark from twice as slow on, if only the first 20 steps count; at 5 times for about two thousand steps. Measure first, and the balance wins from the first step, by what the slow rank's speed adds. Memory may force a slow rank in.
- Independent tasks: a queue, no measuring, and claims that outlive a rank.

## Exercises

`dtcourse start 27`, then `dtcourse check 27`:

1. **Two means in one backward**, each over other things, with unequal ranks.
2. **The quickest shares**, where ranks have fixed costs, and what does not fit is done in pieces.
3. **Which balance is broken, and how?**
4. **Choose** between sharing and leaving out, and how patient to be.

## Further

- Backup workers and late gradients, for ranks that are late by chance: [lesson 09](../lessons/09-stragglers-and-async.ipynb), [lesson 09b](../lessons/09b-asynchronous-training.ipynb).
- Fewer local steps for a slow rank: [lesson 10](../lessons/10-local-updates.ipynb); clients that all differ: lesson 28.
- Precision and kernels that differ between kinds of GPU: equal to one process then means up to rounding.

## Papers

Chen et al. 2020, Semi-dynamic load balancing (SoCC) · Blumofe and Leiserson 1999, work stealing (JACM) · Narayanan et al. 2019, PipeDream (SOSP) · Athlur et al. 2022, Varuna (EuroSys) · Li et al. 2022, AMP (2210.07297).
"""
