# %% [markdown] id=title
"""
# 28 · Federated learning

Hospitals, phones and banks have data that must not move. A server sends the model to them, each trains it on its own data, and the server takes the mean of what they have changed.
**The question of this lesson: how do many clients whose data differ train one model, in few rounds and with few bytes?** What the changes tell about the data, and how that is hidden, is a question of its own.

**You will be able to**

- write FedAvg, and say what the weights and the drawing of clients do to where it ends;
- say why clients drift, and what FedProx, SCAFFOLD and FedAdam each do about it;
- predict the bytes of a round, compressed and not, and what simulating hundreds of clients on a few ranks costs;
- find clients that count too much, statistics that nobody averages, and ranks that simulate different rounds.

**Know first:** [lesson 10](../lessons/10-local-updates.ipynb) (local SGD, outer steps), [lesson 11](../lessons/11-quantised-gradients.ipynb) and [lesson 12](../lessons/12-sparse-gradients.ipynb) (compressors).

**Takes:** about 90 minutes without the exercises, an estimate. About «n» seconds to run. **Needs:** two CPU cores.
"""

# %% id=parameters tags=parameters
WORLD_SIZE = 4  # ranks, on which the clients live
DEVICE = None  # None: what this machine has; or "cpu", "cuda"
BACKEND = None  # None: NCCL where every rank has its own GPU, else gloo
CLUSTER = None  # None: this machine; or "slurm": launches that are not emulated run as jobs of that cluster
NUM_CLIENTS = 200
ROUNDS = 12  # where methods are compared

# %% id=question hidden
from dtcourse import plots
from dtcourse.launch import use_cluster

use_cluster(CLUSTER)

P = max(2, WORLD_SIZE)
NUMBERS = 1_663_370  # parameters of the CNN in the FedAvg paper, section 3
STEP_SECONDS = 0.1  # of one step on a phone: an assumption
KS = [2**n for n in range(11)]


def step_seconds(megabytes, K):
    """Of one step, where a client sends so many megabytes per second, and sends its model after each K steps."""
    return STEP_SECONDS + 4 * NUMBERS / (megabytes * 1e6) / K


for K in (1, 100):
    share = 1 - STEP_SECONDS / step_seconds(1, K)
    print(f"1 MB/s, {K:3d} steps per round: {step_seconds(1, K):.2f} s per step; the link takes {share:.0%}")
plots.curves(
    {f"{rate:g} MB/s": (KS, [step_seconds(rate, K) for K in KS]) for rate in (0.1, 1, 10)},
    xlabel="K, steps of a client per round", ylabel="seconds per step",
    log_x=True, log_y=True, x_unit="count", y_unit="seconds",
    title="A phone trains a small CNN, by how often it sends it",
)  # fmt: skip

# %% [markdown] id=skew-predict
"""
The FedAvg paper expects clients to send at most 1 MB/s. There, with one step per round the link takes 99 % of the time, and with 100 steps 40 %. So clients take many steps alone, as ranks do in [lesson 10](../lessons/10-local-updates.ipynb). Three things are new:

- a client has the data that it happens to have: few labels, few samples, or none;
- most clients are absent from a round;
- nobody may move data to mend that.

## 1 · Clients and their data

Experiments need clients that differ, and a number that says by how much. The usual way is Dirichlet's distribution: each client draws its shares of the ten labels from it (Hsu et al., 1909.06335, whose α is ten times the one here). Its parameter α is small where shares differ much.

**Predict.** What is a client's largest share, on average, with α = 1: 0.1, 0.3 or 0.6? And what happens to it with α = 0.1 and with α = 100?

<details><summary>Answer</summary>
With α = 1 about 0.3. The shares are then pieces of a stick that is broken at nine random places, and the largest of ten such pieces has (1 + 1/2 + … + 1/10) / 10 = 0.29 of it on average. It grows with a smaller α, and goes to 0.1 with a large one.
</details>
"""

# %% id=my-skew topics=28.non-iid
import numpy as np


def my_label_shares(num_clients, alpha, seed):
    """(clients, 10): each client's shares of the ten labels."""
    return np.random.default_rng(seed).dirichlet(np.full(10, alpha), num_clients)


for alpha in (0.1, 0.3, 1.0, 100.0):
    shares = my_label_shares(2000, alpha, seed=0)
    many = (shares > 0.05).sum(1).mean()
    print(f"alpha = {alpha:5g}: largest share {shares.max(1).mean():.2f}, {many:.1f} labels over 5 %")

# %% [markdown] id=skew-answer
"""
Answer: «0.29» with α = 1, «n» with 0.1 and «n» with 100. With α = 0.1 a client has «n» labels that are more than a twentieth of its data.

The course draws how many samples a client has apart from which ones it has, each with its own α. So an experiment can change one and keep the other; `math.inf` is no skew. Here are ten clients with both skews. Each cell is the number of images of a digit that a client has.
"""

# %% id=clients topics=28.non-iid
import math

from dtcourse.data import digits
from dtcourse.federated import Clients, label_skew, quantity_skew

TRAIN, TEST = digits("train", flat=True), digits("test", flat=True)


def clients_of(num_clients, alpha, quantity=math.inf, seed=0):
    """alpha: of the labels; quantity: of how many samples a client has."""
    sizes = quantity_skew(len(TRAIN), num_clients, quantity, seed)
    return Clients(TRAIN.images, TRAIN.labels, label_skew(TRAIN.labels, sizes, alpha, seed))


few = clients_of(10, alpha=0.1, quantity=1.0)
print("samples by client:", *few.sizes)
plots.heatmap(
    few.label_counts(10), xlabel="digit", ylabel="client", unit="count", annotate=True,
    title="1,438 images at ten clients: both skews",
)  # fmt: skip

# %% [markdown] id=fedavg-predict
"""
**What this adds to the question.** Two numbers say how much clients differ: α of the labels, and α of the quantities.

## 2 · FedAvg

In a round the server draws some clients, *S*, and sends them the model *x*. Each takes *K* steps of SGD on its own samples and ends at *y*ₖ. The server adds the mean of the changes, weighted by how many samples *n*ₖ a client has: *x* ← *x* + Σ *n*ₖ (*y*ₖ − *x*) / Σ *n*ₖ, over *S*.

**Predict.** Client 0 has 90 samples and the loss ½ *x*², client 1 has ten and the loss ½ (*x* − 1)². So the mean over all samples has its minimum at 0.1. Where is *x*, averaged over many rounds,

(a) if both take part in each round, weighted by samples;
(b) if both take part, and count alike;
(c) if one is drawn per round, each as likely as the other, weighted by samples;
(d) if one is drawn per round, client 0 nine times as often, and whoever comes counts alike?

<details><summary>Answer</summary>
(a) At 0.1. (b) At 0.5. (c) At 0.5: the mean of one change is that change, whatever its weight, and each client comes half of the time. (d) Around 0.1: the drawing weighs now. In (c) and (d) x never rests, since each round pulls to one client's own minimum.
</details>
"""

# %% id=my-fedavg topics=28.fedavg
import torch

SAMPLES, CENTERS = torch.tensor([90.0, 10.0]), torch.tensor([0.0, 1.0])  # of the two clients


def my_fedavg(rounds, K, lr, drawn, weights):
    """drawn(): the clients of a round. Client k has the loss 1/2 (x - CENTERS[k])^2. Returns x after each round."""
    x, found = torch.tensor(0.5), []
    for _ in range(rounds):
        S = drawn()
        y = x.repeat(len(S))
        for _ in range(K):
            y = y - lr * (y - CENTERS[S])
        x = x + (weights[S] * (y - x)).sum() / weights[S].sum()
        found.append(x)
    return torch.stack(found)

# %% id=my-fedavg-run topics=28.fedavg
draw, alike = torch.Generator().manual_seed(0), torch.ones(2)
both = lambda: torch.tensor([0, 1])  # noqa: E731
one = lambda chances: lambda: torch.multinomial(chances, 1, generator=draw)  # noqa: E731
cases = {
    "(a) both, by samples": (both, SAMPLES),
    "(b) both, alike": (both, alike),
    "(c) one, drawn alike, by samples": (one(alike), SAMPLES),
    "(d) one, drawn by samples, alike": (one(SAMPLES), alike),
}
for name, (drawn, weights) in cases.items():
    x = my_fedavg(4000, 2, 0.05, drawn, weights)[1000:]
    print(f"{name:33s} mean of 3,000 rounds {x.mean():.2f}, deviation {x.std():.2f}")

# %% [markdown] id=fedavg-answer
"""
Answer: «0.10, 0.50, 0.50 and 0.10». So weights and drawing belong together: draw alike and weigh by samples, or draw by samples and weigh alike. With one client per round the first way fails, as (c) shows; with many clients per round Σ *n*ₖ hardly varies, and the fault is small. The FedAvg paper draws alike and weighs by samples, and so does the course's `FedAvg`; FedProx's authors draw by samples. With weights for clients instead of samples (`weighting="clients"`) the goal is another one: the mean of the clients' losses.

How the changes are added, on a rank that has some of the clients. (A client whose change is not finite is left out, and the report says so.)
"""

# %% id=show-fedavg topics=28.fedavg
from dtcourse.course import show
from dtcourse.federated import FedAvg

show(FedAvg.collect, docstring=False)

# %% [markdown] id=bytes-predict
"""
## 3 · Hundreds of clients on few ranks

Here 200 clients live on the ranks: client *k* on rank *k* mod *p*, which does the work of its clients one after the other. Whatever a client draws comes from the seed, the round and its number. So all ranks know who takes part without a message, and another number of ranks gives the same run.

A model has *N* bytes. **Predict** for rounds of 20 clients, and for rounds of 100: (a) how many bytes go from the server to the clients, and back? (b) How many bytes do *p* ranks send to simulate a round, in a ring? They also add up one number of eight bytes, the bytes that were counted. (Before each round they compare their settings, which is left out of the count.)

<details><summary>Answer</summary>
(a) 20 N down, or 100 N, and as much up, but for clients that have no data: they send nothing. (b) A rank adds up its own clients first, so 2 (p − 1) (N + 8), however many clients there are.
</details>
"""

# %% id=many topics=28.fedavg
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.federated import ClientWork
from dtcourse.models import MLP

MANY, SIZES = clients_of(NUM_CLIENTS, alpha=0.3, quantity=1.0), (64, 16, 10)
N = sum(4 * p.numel() for p in MLP(SIZES).parameters())


def some_rounds(num_sampled, rounds=4):
    """On a rank: what the server reports, the bytes that this rank sends, the model."""
    work = ClientWork(F.cross_entropy, lr=0.1, steps=5, batch_size=10)
    federated = FedAvg(MLP(SIZES, seed=0), MANY, work, num_sampled, seed=0)
    with traffic.counting() as sent:
        reports = [federated.round() for _ in range(rounds)]
    return reports, sent.bytes_sent(operation="all_reduce"), federated.x

# %% id=many-run topics=28.fedavg
def with_data(num_sampled, rounds=4):
    """How many clients of these rounds have any data."""
    drawn = [k for number in range(rounds) for k in MANY.drawn(num_sampled, 0, number)]
    return sum(MANY.sizes[k] > 0 for k in drawn)


rows, ends = [], {}
for size in (NUM_CLIENTS // 10, NUM_CLIENTS // 2):
    run = launch(some_rounds, P, size, device="cpu", backend="ring")
    reports, _, ends[size] = run[0]
    told = {"down": 4 * size * N, "up": with_data(size) * N, "among ranks": 4 * 2 * (P - 1) * (N + 8)}
    found = [sum(r.down_bytes for r in reports), sum(r.up_bytes for r in reports)]
    found.append(sum(sent for _, sent, _ in run))
    for (way, predicted), counted in zip(told.items(), found, strict=True):
        rows.append((size, way, predicted, counted, counted / predicted))
    empty = [sentence for report in reports for sentence in report.skipped.values()]
print(f"{len(empty)} of the last {4 * size} visits came to nothing:", empty[0] if empty else "-")
header = ["clients", "way", "predicted bytes", "counted bytes", "ratio"]
plots.table(rows, columns=header, formats={"ratio": "{:.3f}"} | dict.fromkeys(header[2:4], "{:,.0f}"))

# %% [markdown] id=idle-predict
"""
Answer: as predicted. Four rounds of 20 clients take «n» bytes down and «n» up. For 100 clients that is five times as many, and the ranks send the same «n» bytes. Some clients have no data: they are skipped with a sentence, and the round goes on.

One process without any group runs the same clients. And each round waits for the rank that has the most of its clients.

**Predict.** 20 of 200 clients are drawn, and each takes as long. Which share of their time do four ranks wait, on average: none, a third or two thirds? More or less of it with 100 clients?

<details><summary>Answer</summary>
About a third: five clients per rank are the mean, and the fullest of four ranks has seven or eight. With 100 clients the fullest rank is nearer to the mean of 25, so less.
</details>
"""

# %% id=idle topics=28.fedavg
import statistics

alone = some_rounds(NUM_CLIENTS // 10)[2]
error = ((ends[NUM_CLIENTS // 10] - alone).norm() / alone.norm()).item()
print(f"{P} ranks and one process: relative difference", "below 1e-5" if error < 1e-5 else f"{error:.1e}")


def waiting(num_sampled, p, rounds=200):
    """The mean share of a round in which ranks wait, if each client takes as long."""
    shares = []
    for number in range(rounds):
        drawn = MANY.drawn(num_sampled, 0, number)
        fullest = max(len(MANY.living_on(rank, p, drawn)) for rank in range(p))
        shares.append(1 - len(drawn) / (p * fullest))
    return statistics.mean(shares)


for size in (NUM_CLIENTS // 10, NUM_CLIENTS // 2, NUM_CLIENTS):
    print(f"{size:3d} of {NUM_CLIENTS} clients: ranks wait", *(f"{waiting(size, p):.0%} of {p}," for p in (2, 4, 8)))

# %% [markdown] id=drift-predict
"""
Answer: «n» of the time with 20 clients on four ranks, and «n» with 100. (A client's home is fixed so that it can keep something from round to round, as section 4 needs. Simulators whose clients keep nothing give the next client to whichever rank is free.)

**What this adds to the question.** A round is a weighted mean. A server exchanges two models with each client of it, whatever their steps are; simulating them costs one sum over the ranks.

## 4 · Drift

Clients that take several steps walk to their own minima, and the mean of these is none of the whole: they **drift**. How much of their walking does the mean keep? Let ten clients take *K* steps from the same model, and divide the length of the mean change by the mean length of the changes.

**Predict.** What is this share (a) if all changes are the same; (b) if ten changes are as long as each other, and at right angles? (c) Does it fall with *K* where labels are not skewed?

<details><summary>Answer</summary>
(a) 1. (b) 1/√10 = 0.32. (c) Little, since such clients have nearly the same loss.
</details>
"""

# %% id=drift topics=28.non-iid
SOFTMAX = (64, 10)  # one layer: a convex loss


def kept(alpha, K):
    """The length of the mean change of ten clients, as a share of the mean length."""
    work = ClientWork(F.cross_entropy, lr=0.1, steps=K)
    federated = FedAvg(MLP(SOFTMAX, seed=0), clients_of(10, alpha), work)
    changes = torch.stack([federated.trained(client, K) for client in range(10)])
    return (changes.mean(0).norm() / changes.norm(dim=1).mean()).item()


rows = [(alpha, *(kept(alpha, K) for K in (1, 10, 50))) for alpha in (math.inf, 1.0, 0.1)]
header = ["alpha", "K = 1", "K = 10", "K = 50"]
plots.table(rows, columns=header, formats={"alpha": "{:g}"} | dict.fromkeys(header[1:], "{:.2f}"))

# %% [markdown] id=methods-predict
"""
Answer: «n» to «n» without skew, and «n» to «n» with α = 0.1. So with skewed labels most of what clients do is undone by the others.

Two methods change the client's step *y* ← *y* − lr *g*ₖ(*y*).

- **FedProx** (Li et al., 1812.06127) adds a pull back to where the round began: *g*ₖ(*y*) + μ (*y* − *x*).
- **SCAFFOLD** (Karimireddy et al., 1910.06378) keeps in *c*ₖ where client *k*'s gradient usually points, and in *c* the mean of all *c*ₖ. A client steps along *g*ₖ(*y*) − *c*ₖ + *c*: its own direction is taken off, and everyone's is put in its place. After the round *c*ₖ is the mean gradient of its steps, which follows from where it came to: *c*ₖ ← *c*ₖ − *c* + (*x* − *y*ₖ) / (*K* lr).

**Predict.** The two losses of [lesson 10](../lessons/10-local-updates.ipynb): ½ *x*² and ½ · 4 (*x* − 1)², with as many samples. Their mean has its minimum at 0.8. With *K* = 16 and lr = 0.1 FedAvg rests at 0.551. (a) Does FedProx with μ = 4 rest nearer to 0.8? (b) And SCAFFOLD? (c) Which of them needs the most rounds?

<details><summary>Answer</summary>
(a) Nearer: a client that is held back goes less far to its own minimum. (b) At 0.8 itself. There c is 0, and each client's gradient is its own cₖ, which is taken off: no client moves. (c) FedProx: who is held back moves less per round.
</details>
"""

# %% id=my-methods topics=28.non-iid
STEEP, MINIMA = torch.tensor([1.0, 4.0]), torch.tensor([0.0, 1.0])


def my_clients(x, K, lr, mu=0.0, correction=0.0):
    """Where both clients come to from x."""
    y = x.repeat(2)
    for _ in range(K):
        y = y - lr * (STEEP * (y - MINIMA) + mu * (y - x) + correction)
    return y


def my_scaffold(rounds, K, lr, keeps=True, mu=0.0):
    """x after each round. keeps=False: FedAvg, or FedProx."""
    x, own, found = torch.tensor(0.0), torch.zeros(2), []
    for _ in range(rounds):
        c = own.mean()
        y = my_clients(x, K, lr, mu, c - own)
        if keeps:
            own = own - c + (x - y) / (K * lr)
        x = y.mean()
        found.append(x.item())
    return found

# %% id=my-methods-run topics=28.non-iid
runs = {
    "FedAvg": my_scaffold(40, 16, 0.1, keeps=False),
    "FedAvg, lr = 0.01": my_scaffold(40, 16, 0.01, keeps=False),
    "FedProx, mu = 1": my_scaffold(40, 16, 0.1, keeps=False, mu=1.0),
    "FedProx, mu = 4": my_scaffold(40, 16, 0.1, keeps=False, mu=4.0),
    "SCAFFOLD": my_scaffold(40, 16, 0.1),
}
for name, found in runs.items():
    near = next(t for t, x in enumerate(found, 1) if abs(x - found[-1]) < 0.01)
    print(f"{name:18s} rests at {found[-1]:.3f}, and is within 0.01 of that after {near} rounds")
plots.curves(
    {name: (range(1, 21), found[:20]) for name, found in runs.items()},
    xlabel="round", ylabel="x", title="Two clients; the minimum of the whole is at 0.8",
)  # fmt: skip

# %% [markdown] id=methods-answer
"""
Answer: FedProx rests at 0.622 with μ = 1 and at 0.714 with μ = 4, and SCAFFOLD at 0.800. FedAvg with a tenth of the learning rate rests at 0.764: nearer than FedProx does, and it needs «n» rounds instead of «n». So FedProx and a small learning rate trade rounds for nearness. SCAFFOLD mends the place itself, and it needs «n» rounds here.

What it costs: SCAFFOLD sends *x* and *c* down, and both changes up, so twice the bytes. And each client keeps *c*ₖ, *N* bytes. The course's client:
"""

# %% id=show-scaffold topics=28.non-iid
from dtcourse.federated import Scaffold

show(Scaffold.change_of)

# %% [markdown] id=visits-predict
"""
A client that comes for the first time has *c*ₖ = 0, and is corrected by *c* alone. So SCAFFOLD is for clients that come again.

**Predict** for twelve rounds of ten clients: in which share of these 120 visits does a client find a *c*ₖ of its own, (a) with 20 clients, (b) with 200? Both are above 0.

<details><summary>Answer</summary>
After t rounds 1 − (1 − 10/n)ᵗ of n clients have come. (a) All 20 have come soon: about 100 of 120 visits are not the first, 83 %. (b) 200 (1 − 0.95¹²) = 92 clients have come, so 28 of 120 visits: 23 %.
</details>
"""

# %% id=visits topics=28.non-iid
for num_clients in (20, 200):
    everyone, seen, again = clients_of(num_clients, math.inf), set(), 0
    for number in range(12):
        drawn = everyone.drawn(10, 0, number)
        again += len(seen & set(drawn))
        seen |= set(drawn)
    told = 1 - num_clients * (1 - (1 - 10 / num_clients) ** 12) / 120
    print(f"{num_clients:3d} clients: {again / 120:.0%} of the visits find c_k, {told:.0%} predicted")

# %% [markdown] id=opt-predict
"""
Answer: «83 %» and «23 %». With millions of phones hardly any client comes twice, and no *c*ₖ is of use. With twenty hospitals nearly every visit finds one.

**What this adds to the question.** Clients whose data differ pull the mean to a place that is not the minimum of the whole. A smaller learning rate or FedProx bring it nearer, for more rounds. SCAFFOLD ends at the minimum, for twice the bytes, where clients come again.

## 5 · The server's step

The mean change δ says where the clients want to go. **FedOpt** (Reddi et al., 2003.00295) takes −δ for a gradient, and gives it to an optimizer at the server; so clients keep nothing. **FedAdam** at its first step: *m* = 0.1 δ, *v* = 0.99 τ² + 0.01 δ², and *x* moves by lr · *m* / (√*v* + τ).

**Predict** for lr = 0.03: one number's mean change is 0.1, another's is 0.001. By which factor do their steps differ, (a) with τ = 0.001, (b) with τ = 0.1? (c) Which server is FedAvg?

<details><summary>Answer</summary>
(a) By about 18, and not by 100: 0.1 is far above τ, and its step comes near to lr; 0.001 is as small as τ, and is held back by it. (b) By nearly 100: √v + τ is about 0.2 for both, so steps are in proportion to δ, as SGD's are. (c) SGD with lr = 1, without momentum.
</details>
"""

# %% id=my-fedadam topics=28.non-iid
def my_fedadam(delta, m, v, lr, tau, betas=(0.9, 0.99)):
    """The server's step, and its moments."""
    m = betas[0] * m + (1 - betas[0]) * delta
    v = betas[1] * v + (1 - betas[1]) * delta**2
    return lr * m / (v.sqrt() + tau), m, v


delta = torch.tensor([0.1, 0.001], dtype=torch.double)
for tau in (0.001, 0.1):
    step, _, _ = my_fedadam(delta, torch.zeros(2), torch.full((2,), tau**2), 0.03, tau)
    print(f"tau = {tau:5g}: steps", *(f"{one:.2g}" for one in step), f"- a factor of {step[0] / step[1]:.0f}")

# %% [markdown] id=compare-predict
"""
Answer: by «18» and by «100». Small changes that are always the same way, as those of a rare word's weights, count for more with a small τ.

Now all four on digits: ten clients with α = 0.1, one layer, eight full-batch steps per round. So nothing is drawn but the clients' data. Each method has a grid of learning rates (FedProx also of μ, FedAdam of the server's learning rate). Its best setting is found on one deal of the images by the loss after the last round, and then it runs on another deal. *All data* takes eight steps per round with the whole: nobody drifts there.

**Predict.** Order the four by the loss over all training images after twelve rounds. Which comes nearest to *all data*?

<details><summary>Answer</summary>
In the end SCAFFOLD has to: its clients come in each round, and it alone rests at the minimum. Twelve rounds are not the end, and its first one is FedAvg's. So the table has to say.
</details>
"""

# %% id=compare topics=28.non-iid
from dataclasses import replace

from dtcourse import device
from dtcourse.federated import FedAdam

LRS = (0.03, 0.1, 0.3, 1.0)


def here(clients):
    """The clients, with their images on this rank's device."""
    place = device.current()
    return replace(clients, inputs=clients.inputs.to(place), targets=clients.targets.to(place))


def losses(clients, lr, method=FedAvg, K=8, server_lr=None, **options):
    """On a rank: the loss over all training images after each round."""
    model, work = MLP(SOFTMAX, seed=0).to(device.current()), ClientWork(F.cross_entropy, lr, K)
    if server_lr is not None:
        options["server"] = FedAdam(server_lr, tau=1e-2)
    federated, found = method(model, clients, work, **options), []
    for _ in range(ROUNDS):
        federated.round()
        with torch.no_grad():
            found.append(F.cross_entropy(model(clients.inputs), clients.targets).item())
    return found


def last(curve):
    """A run that has no number at its end is the worst."""
    return curve[-1] if math.isfinite(curve[-1]) else math.inf

# %% id=compare-grid topics=28.non-iid
GRIDS = {
    "all data": [{"lr": lr} for lr in LRS],
    "FedAvg": [{"lr": lr} for lr in LRS],
    "FedProx": [{"lr": lr, "mu": mu} for lr in LRS for mu in (0.1, 1.0)],
    "SCAFFOLD": [{"lr": lr, "method": Scaffold} for lr in LRS],
    "FedAdam": [{"lr": lr, "server_lr": s} for lr in (0.1, 0.3) for s in (0.03, 0.1, 0.3)],
}


def compared(tuning, deals):
    """On a rank, by method: its best setting, and its losses on the other deal. tuning, deals: by method"""
    found = {}
    for name, grid in GRIDS.items():
        first, then = here(tuning[name]), here(deals[name])
        best = min(grid, key=lambda setting: last(losses(first, **setting)))  # noqa: B023
        found[name] = best, losses(then, **best)
    return found

# %% id=compare-run topics=28.non-iid
whole = clients_of(1, math.inf)
deals = [dict.fromkeys(GRIDS, clients_of(10, 0.1, seed=seed)) | {"all data": whole} for seed in (1, 0)]
run = launch(compared, P, *deals, device=DEVICE, backend=BACKEND)[0]
rows = []
for name, (best, curve) in run.items():
    words = ", ".join(f"{key} {value:g}" for key, value in best.items() if key != "method")
    rows.append((name, words, *(curve[t - 1] for t in (2, 5, ROUNDS))))
header = ["", "best setting", "after 2 rounds", "after 5", f"after {ROUNDS}"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[2:], "{:.2f}"))

# %% id=compare-picture hidden topics=28.non-iid
plots.curves(
    {name: (range(1, ROUNDS + 1), curve) for name, (_, curve) in run.items()},
    xlabel="round", ylabel="loss over all training images", log_y=True,
    title="Ten clients with a digit or two each, tuned, one deal",
)  # fmt: skip

# %% [markdown] id=compare-answer
"""
Answer: «FedAvg n, FedProx n, SCAFFOLD n, FedAdam n, all data n». «Say here which order came out, and whether each best setting lies inside its grid.» SCAFFOLD's first round is FedAvg's, since all *c*ₖ are 0; what it gains comes later. Each of these is one deal of the images, and one short run of a small convex model: it shows how the methods work, and not which is better. The FedOpt paper finds adaptive servers ahead on text, where many weights are rarely used. Karimireddy et al. find SCAFFOLD ahead on images sorted by label, of 100 clients that come often enough.

**What this adds to the question.** The server may take the mean change for a gradient. That needs no bytes and no memory at the clients.

## 6 · Fewer rounds, fewer bytes

Bytes are rounds, times clients, times what each sends and gets. More local steps *K* save rounds. A compressor ([lesson 11](../lessons/11-quantised-gradients.ipynb), [lesson 12](../lessons/12-sparse-gradients.ipynb)) makes each change smaller. `FedAvg(compress=...)` gives each client of each round a new one, so there is no error feedback: a client that may never come again has nowhere to keep a residual.

**Predict** for a model of *n* = 1,210 numbers: how many bytes go up per client (a) as they are, (b) with QSGD of seven levels: four bits per number, and a norm of four bytes per 512 numbers, (c) with the largest 5 % and their places? (d) By which factor does (b) lower up and down together: 8, 4 or 2?

<details><summary>Answer</summary>
(a) 4,840. (b) 605 and 3 · 4 = 617. (c) 61 numbers of eight bytes: 488. (d) By less than 2: the model goes down as it is. 9,680 / (4,840 + 617) = 1.77.
</details>
"""

# %% id=ways topics=28.federated-compression
from dtcourse.compression import QSGD, TopK

WAYS = {
    "K = 1": (1, None),
    "K = 4": (4, None),
    "K = 10": (10, None),
    "K = 10, QSGD": (10, lambda seed: QSGD(7, seed=seed)),
    "K = 10, top 5 %": (10, lambda seed: TopK(0.05)),
}


def way(clients, lr, K, compress, seed):
    """On a rank, by round: the loss on images held out; and bytes up and down, per client of the round."""
    model, work = MLP(SIZES, seed=0), ClientWork(F.cross_entropy, lr, K, batch_size=10)
    federated, found, per_client = FedAvg(model, clients, work, 10, seed, compress=compress), [], []
    for _ in range(ROUNDS):
        report = federated.round()
        with torch.no_grad():
            found.append(F.cross_entropy(model(TEST.images), TEST.labels).item())
        per_client.append((report.up_bytes / 10, report.down_bytes / 10))
    return found, per_client

# %% id=ways-run topics=28.federated-compression
def all_ways(tuning, clients):
    """On a rank, by way: its best learning rate on one deal and seed, and what it does with it on another."""
    found = {}
    for name, (K, compress) in WAYS.items():
        lr = min(LRS, key=lambda lr: last(way(tuning, lr, K, compress, 1)[0]))  # noqa: B023
        found[name] = lr, *way(clients, lr, K, compress, 0)
    return found


run = launch(all_ways, P, clients_of(100, 0.3, seed=1), clients_of(100, 0.3, seed=0), device="cpu")[0]
rows = []
for name, (lr, curve, per_client) in run.items():
    (up, down), told = per_client[-1], {"QSGD": 617, "top": 488}
    predicted = next((size for word, size in told.items() if word in name), 4840)
    rows.append((name, lr, predicted, up, up + down, curve[-1]))
header = ["", "best lr", "predicted up", "counted up", "up and down", f"loss after {ROUNDS} rounds"]
plots.table(rows, columns=header, formats=dict.fromkeys(header[2:5], "{:,.0f}") | {header[-1]: "{:.2f}"})

# %% id=ways-picture hidden topics=28.federated-compression
from itertools import accumulate

plots.curves(
    {
        name: (list(accumulate(up + down for up, down in per_client)), curve)
        for name, (_, curve, per_client) in run.items()
    },
    xlabel="bytes up and down, per client of a round", ylabel="loss on images held out", x_unit="decimal bytes",
    title="100 clients, ten per round: loss against bytes, one deal",
)  # fmt: skip

# %% [markdown] id=ways-answer
"""
Answer: 4,840, 617 and 488 bytes, as predicted; up and down together QSGD takes «5,457» instead of 9,680. After twelve rounds and the same bytes *K* = 1 is at «n», *K* = 4 at «n» and *K* = 10 at «n». QSGD is at «n» and the largest 5 % at «n». QSGD is unbiased: what it rounds away is made up for by the other clients of the round. TopK without error feedback drops the same small changes in each round. «Check these words against the table.» It is one deal, one seed and twelve rounds.

So where the way down is as slow as the way up, compressing what goes up saves less than half; more local steps save whole rounds. On links whose way up is far slower, such as phones', the way up is what counts.

**What this adds to the question.** More steps per round save both ways; a compressor of the changes saves the way up. Secure aggregation adds masked numbers, which look like chance: no compressor makes them smaller.

## 7 · Break it

**Statistics that nobody averages** (an error). Batch norm keeps means of the images that it has seen, which at a client are its own few digits.
"""

# %% id=batch-norm topics=28.non-iid
from torch import nn

from dtcourse.course import expect_error


def with_norm(norm):
    return nn.Sequential(nn.Linear(64, 16), norm, nn.ReLU(), nn.Linear(16, 10))


work = ClientWork(F.cross_entropy, lr=0.1, steps=5, batch_size=10)
with expect_error(ValueError, lines=None):
    FedAvg(with_norm(nn.BatchNorm1d(16)), MANY, work)
torch.manual_seed(0)
repaired = with_norm(nn.GroupNorm(4, 16))
federated = FedAvg(repaired, MANY, work, NUM_CLIENTS // 10)
for _ in range(4):
    federated.round()
print(f"with GroupNorm, after 4 rounds: {F.cross_entropy(repaired(TEST.images), TEST.labels).item():.2f}")

# %% [markdown] id=epochs-predict
"""
*Diagnosis:* the message says which statistics. They would differ by client, and a weighted mean of them is not the whole's (Hsieh et al., 1910.00189, measure what that costs). *Repair:* a norm of single samples, such as `GroupNorm`; it trains.

**A pass over one's data** (silent). "Each client makes one epoch per round" sounds fair. Two clients with the loss (*x* − 0)² and (*x* − 1)² have 90 and ten samples, and batches of ten: nine steps and one.

**Predict.** Where does FedAvg end: near 0.5, 0.1 or 0.01? And if both take five steps?

<details><summary>Answer</summary>
Near 0.01. A client that takes nine times as many steps goes nine times as far, and its change counts nine times as much besides: the weights are nearly 90 · 9 and 10 · 1, so x ends near 10 / 820. With five steps each at 0.1.
</details>
"""

# %% id=epochs topics=28.fedavg
PAIR = Clients(
    torch.ones(100, 1),
    (torch.arange(100) >= 90).float()[:, None],
    [torch.arange(90), torch.arange(90, 100)],
)
EPOCH = (9, 1)  # steps of each client


class FedNova(FedAvg):
    """A client's change per step, times the mean number of steps."""

    def change_of(self, client, steps, draw):
        mean = sum(n * k for n, k in zip(PAIR.sizes, EPOCH, strict=True)) / sum(PAIR.sizes)
        return super().change_of(client, steps, draw) * mean / steps


def ends_at(steps, method=FedAvg, lr=0.01):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    federated = method(model, PAIR, ClientWork(F.mse_loss, lr, steps, batch_size=10))
    for _ in range(120):
        federated.round()
    return federated.x.item()

# %% id=epochs-run topics=28.fedavg
def one_epoch(_number, client):
    return EPOCH[client]


for name, x in {
    "one epoch each": ends_at(one_epoch),
    "five steps each": ends_at(5),
    "one epoch each, FedNova": ends_at(one_epoch, FedNova),
}.items():
    print(f"{name:24s} x = {x:.3f}")

# %% [markdown] id=apart-predict
"""
*Diagnosis:* «0.013» with an epoch each; no loss of a client shows it, and nothing fails. Compare with a run whose clients take the same number of steps: «0.100». *Repair:* that, or **FedNova** (Wang et al., 2007.07481): divide a client's change by its steps, and multiply the mean by the mean number of steps. It ends at «0.107», and nearer to 0.1 with a smaller learning rate.

**Ranks that simulate different rounds** (an error). Somebody draws a round's clients with `torch.randperm`, and each rank has its own random state, as dropout needs.

**Predict.** Suppose that nothing is compared. Would the ranks hang, would their sums fail, or would they go on? And what would their models have in common after a round?

<details><summary>Answer</summary>
They would go on: all sums have the same shape. Each rank would add the changes of its own list's clients that live there, so all would have the same sum. But each would divide it by the samples of its own list: the models would differ, and no message would say so.
</details>
"""

# %% id=apart topics=28.fedavg
import torch.distributed as dist


class DrawnApart(FedAvg):
    def draw_clients(self, _number):
        return sorted(torch.randperm(len(self.clients))[: self.num_sampled].tolist())


def apart(method):
    """On a rank: what a round of three clients says."""
    torch.manual_seed(dist.get_rank())
    federated = method(MLP(SIZES, seed=0), MANY, work, 3)
    try:
        report = federated.round()
    except ValueError as error:
        return str(error)
    return f"drawn: {report.drawn}"


for method in (DrawnApart, FedAvg):
    said = launch(apart, 2, method, device="cpu")
    for rank, sentence in enumerate(said):
        print(f"{method.__name__}, rank {rank}: {sentence}")

# %% [markdown] id=real-text
"""
*Diagnosis:* ranks compare who is drawn, their settings and their models before each round, and name what differs. *Repair:* all ranks draw from the same seed and round, as `FedAvg.draw_clients` does. In code of your own, without such a comparison, print one number of the model on two ranks after a round.

## 8 · The real thing

PyTorch has no federated learning of its own. A round in PyTorch alone is this, and it gives the same numbers:
"""

# %% id=plain topics=28.fedavg
import copy


def plain_round(model, parts, lr, steps):
    """parts: (inputs, targets) of each client of the round. Nothing here is the course's."""
    mean = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    samples = sum(len(targets) for _, targets in parts)
    for inputs, targets in parts:
        local = copy.deepcopy(model)
        sgd = torch.optim.SGD(local.parameters(), lr=lr)
        for _ in range(steps):
            sgd.zero_grad()
            F.cross_entropy(local(inputs), targets).backward()
            sgd.step()
        for name, value in local.state_dict().items():
            mean[name] += len(targets) / samples * value
    model.load_state_dict(mean)

# %% id=plain-run topics=28.fedavg
double = Clients(TRAIN.images.double(), TRAIN.labels, clients_of(10, 0.1, seed=0).parts)
plain, ours = (MLP(SIZES, seed=0).double() for _ in range(2))
federated = FedAvg(ours, double, ClientWork(F.cross_entropy, 0.1, 5), 4)
for number in range(3):
    plain_round(plain, [double.of(k) for k in double.drawn(4, 0, number)], lr=0.1, steps=5)
    federated.round()
vectors = [torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in (plain, ours)]
error = ((vectors[0] - vectors[1]).norm() / vectors[1].norm()).item()
print("relative difference after 3 rounds:", "less than 1e-12" if error < 1e-12 else f"{error:.1e}")

# %% [markdown] id=real-table
"""
For real clients one takes a framework, which brings transport, identities and clients that do not answer. `frameworks/flower_averaging.py` is a whole job in Flower; `dtcourse framework run flower` runs it in an environment of its own. [Lesson 29](../lessons/29-frameworks.ipynb) has what it sent.

||the course|PyTorch|Flower (`flwr.serverapp.strategy`, by its documentation)|
|---|---|---|---|
|FedAvg|`FedAvg`|the cell above|`FedAvg`; the weight is what a client reports as `num-examples`|
|drawing clients|`num_sampled`, alike|none|`fraction_train`, of those that are connected|
|drift|`FedAvg(mu=...)`, `Scaffold`|none|`FedProx` (the client adds the pull itself); no SCAFFOLD among its strategies|
|the server's step|`ServerSGD`, `FedAdam`, `FedYogi`, `FedAdagrad`|`torch.optim` on −δ, but its Adam corrects the moments' start|`FedAvgM`, `FedAdam`, `FedYogi`, `FedAdagrad`|
|compressed changes|`compress=`|none|a mod of one's own at the client|
|clients that fail|not simulated; no data: skipped|none|the round goes on without their replies|
|simulation|clients live on ranks|none|clients on Ray's actors, whichever is free|

## 9 · Two worked questions

**1.** Google's keyboard trained a model of 1.4 million parameters in 3,000 rounds of up to 500 clients (Hard et al., 1811.03604). In float32, what does a client send, how long does that take at 1 MB/s, and what does the server receive in all?

<details><summary>Answer</summary>
5.6 MB in 5.6 s; 500 times that is 2.8 GB per round, 8.4 TB in all. In 8-bit numbers it is a quarter of each.
</details>

**2.** Eight hospitals train ResNet-50 (102 MB; 12 ms per step on an A100, as in [lesson 10](../lessons/10-local-updates.ipynb)). The server has one port of 1 Gbit/s. Which *K* makes communication a tenth of a round, with FedAvg and with SCAFFOLD?

<details><summary>Answer</summary>
The port carries eight models out and eight in. Sending and receiving go at the same time in general, but in a round one follows the other: 16 · 102 MB / 125 MB/s = 13.1 s. A tenth of a round is a ninth of the computing: K = 9 · 13.1 / 0.0117 = 10,000, about. SCAFFOLD sends twice as much, so twice that K.
</details>
"""

# %% id=questions hidden topics=28.federated-compression
from dtcourse.course.stand_in import WORKLOADS

model = 4 * 1.4e6
print(f"1. {model / 1e6:.1f} MB, {model / 1e6:.1f} s; {500 * model / 1e9:.1f} GB, {3000 * 500 * model / 1e12:.1f} TB")
resnet = WORKLOADS["ResNet-50"]
round_trip = 16 * 4 * resnet.parameters / 125e6
print(
    f"2. {round_trip:.1f} s: K = {math.ceil(9 * round_trip / resnet.seconds):,} with FedAvg, "
    f"{math.ceil(18 * round_trip / resnet.seconds):,} with SCAFFOLD"
)

# %% [markdown] id=remember
"""
## What to remember

- How do many clients train one model? In rounds: a server draws clients, they take steps of their own, and the mean of their changes is added. Weights and drawing belong together; equal epochs make large clients count twice.
- What if their data differ? They drift: the mean rests where the whole has no minimum. A smaller learning rate or FedProx come nearer, for more rounds. SCAFFOLD rests at the minimum, for twice the bytes and a vector at each client, where clients come again. FedAdam and its like change the server's step alone.
- Few rounds: more local steps, as far as drift allows. Few bytes: a compressor of the changes, which saves the way up alone. A client that comes once keeps no residual.
- Hundreds of clients on few ranks: a rank adds up its own first, so ranks send one model's sum per round, however many clients there are. The fullest rank is waited for.
- Draw from seed, round and client, never from the rank; use norms without running statistics. Equal epochs raise no error.

## Exercises

`dtcourse start 28`, then `dtcourse check 28`:

1. **A round in one sum**: weights that only the clients' ranks know.
2. **SCAFFOLD with one vector up.**
3. **Which server is broken, and how?**
4. **Choose** the method and the local steps.

## Further

- Clients of which each gets a model of its own: personalisation (Kairouz et al., 1912.04977, section 3.3, an overview of the field).
- Rounds that wait for nobody: FedBuff (Nguyen et al., 2106.06639), with the staleness of [lesson 09](../lessons/09-stragglers-and-async.ipynb).
- A smaller way down: dropout of whole columns (Caldas et al., 1812.07210), or low-rank changes ([lesson 12b](../lessons/12b-low-rank.ipynb)).

## Papers

McMahan et al. 1602.05629 (FedAvg) · Hsu, Qi, Brown 1909.06335 (Dirichlet's skew) · Li et al. 1812.06127 (FedProx) · Karimireddy et al. 1910.06378 (SCAFFOLD) · Reddi et al. 2003.00295 (FedOpt) · Wang et al. 2007.07481 (FedNova) · Hsieh et al. 1910.00189 (skew and norms) · Konečný et al. 1610.05492 (fewer bytes) · Hard et al. 1811.03604 (a keyboard).
"""
