# %% [markdown] id=title
"""
# 30 · Planning at scale: 100 to 100,000 devices

Nobody tries a layout on 10,000 devices to see how long its step takes. The question is answered before: on paper, and by a program that knows what kernels and messages take.
**The question of this lesson: how should we train this on *N* GPUs, and why not otherwise?**

**You will be able to**

- choose a model for a compute budget, and say how far published fits disagree about it;
- predict a step from a layout, hold the prediction against published runs, and say what it is worth;
- search a space of layouts, and answer "why not" and "what if";
- say where each kind of parallelism stops scaling, and by what;
- add failures and the critical batch, so that seconds per step become days until the model is trained.

**Know first:** [lesson 22b](../lessons/22b-choosing-a-layout.ipynb) (layouts, axes and nodes), [lesson 18](../lessons/18-pipeline-schedules.ipynb) (bubbles), [lesson 16](../lessons/16-zero-and-fsdp.ipynb) (ZeRO's stages), [lesson 25b](../lessons/25b-detect-and-recover.ipynb) (how often to save), [lesson 08](../lessons/08-large-batch.ipynb) (the noise scale).

**Takes:** about 90 minutes without the exercises, an estimate. About «n» seconds to run. **Needs:** one CPU core.
"""

# %% id=parameters tags=parameters
WORLD_SIZE = 4  # not used: the planner computes, and nothing is launched
DEVICE = None  # not used either; the devices of this lesson are CARD
BACKEND = None
CLUSTER = None
CARD = "A100 SXM"  # a name that Hardware.of knows, of which nodes of 8 are published
DEVICES = (128, 1024, 8192, 98304)  # multiples of 128
BATCHES = (1536, 6144, 24576)  # sequences of a step, over all devices
TOKENS = 300e9  # to train on, with a batch of BATCHES[0]

# %% id=model
from dtcourse import plots
from dtcourse.launch import use_cluster
from dtcourse.planner import Hardware, Model

use_cluster(CLUSTER)

# GPT-3's sizes; the vocabulary is rounded up to a multiple of 128.
GPT3 = Model(layers=96, hidden=12288, heads=96, vocabulary=50304, sequence=2048)
PEAK, DAY = Hardware.of(CARD).peak, 86_400
OPERATIONS = TOKENS * GPT3.flops_per_token()
print(f"{GPT3.parameters / 1e9:.1f} billion parameters, {OPERATIONS:.2e} operations")

# %% id=question hidden
sizes = [96 * 2**n for n in range(11)]
plots.curves(
    {
        f"MFU {mfu:.0%}": (sizes, [OPERATIONS / (n * PEAK * mfu) / DAY for n in sizes])
        for mfu in (1.0, 0.5, 0.1)
    },
    xlabel="GPUs", ylabel="days", log_x=True, log_y=True, x_unit="count",
    title=f"{GPT3.parameters / 1e9:.0f} billion parameters, {TOKENS / 1e9:.0f} billion tokens",
)  # fmt: skip

# %% [markdown] id=law-predict
"""
Each line is a cluster that loses the same part of its peak at any size. A real one moves from line to line as it grows: messages, bubbles, failures and a batch that is too large all take their part. Where on this picture is the best plan for *N* GPUs? The model has the sizes of GPT-3 (2005.14165, table 2.1).

## 1 · What to train

A cluster gives compute: *C* operations. Training *N* parameters on *D* tokens takes about 6 *N D* of them ([lesson 01](../lessons/01-why-distributed.ipynb)). So a budget can buy a large model and few tokens, or a small model and many. A **scaling law** is fitted to the losses of many small runs, and says which is better:

*L*(*N*, *D*) = *E* + *A* / *N*ᵅ + *B* / *D*ᵝ.

The course's table of published figures has three papers' numbers. Hoffmann et al. (2203.15556, "Chinchilla") fitted the law to over 400 runs of their own. It is here twice: with two digits, as the paper prints the exponents, and with four, as its source text has them. Besiroglu et al. (2404.10102) read 240 of the same runs off a figure, and fitted the law again. Kaplan et al. (2001.08361) had earlier runs, and another form, which gives the best *N* of a budget.

**Predict.** The budget is 175 billion parameters on 300 billion tokens. (a) By which factor do the largest and the smallest of the four recommended models differ: 2, 5 or 20? (b) The same fit with two digits and with four: do the sizes differ by 1 %, 5 % or 25 %? (c) By the newest fit, which part of the budget is wasted on a model 3.3 times too large: 4 %, 40 % or 80 %?

<details><summary>Answer</summary>
(a) About 20. Kaplan's exponent 0.73 gives most of a budget to the model. (b) 25 %. The exponents are those of numbers of 10¹⁰ and more, so their third digit counts. (c) About 40 %. The loss is nearly the same, but loss is dear: to lower it a little takes much compute.
</details>
"""

# %% id=my-optimum topics=30.scaling-laws
from dtcourse.simulator.hardware import published

LAWS = published("scaling_laws")


def my_loss(N, D, fit):
    return fit["E"] + fit["A"] / N ** fit["alpha"] + fit["B"] / D ** fit["beta"]


def my_optimum(compute, fit):
    """The parameters and tokens with the least loss, of all that take so much compute: 6 N D."""
    alpha, beta = fit["alpha"], fit["beta"]
    # There the two terms, each times its exponent, are equal: no shift of compute gains.
    factor = (alpha * fit["A"] / (beta * fit["B"])) ** (1 / (alpha + beta))
    N = factor * (compute / 6) ** (beta / (alpha + beta))
    return N, compute / 6 / N

# %% id=my-waste topics=30.scaling-laws
def my_waste(N, D, fit):
    """The part of the compute that the fit's own best model does not need for the same loss."""
    # The best loss above E falls as compute to this power.
    power = fit["alpha"] * fit["beta"] / (fit["alpha"] + fit["beta"])
    best = my_loss(*my_optimum(6 * N * D, fit), fit)
    needed = ((my_loss(N, D, fit) - fit["E"]) / (best - fit["E"])) ** (-1 / power)
    # Of the best model itself rounding would make it less than 0.
    return max(0.0, 1 - needed)


def kaplan(compute):
    """Table 6 of 2001.08361, in PF-days; tokens follow from 6 N D."""
    law = LAWS["kaplan"]
    N = law["N_e"] * (compute / 8.64e19) ** law["p_N"]
    return N, compute / 6 / N

# %% id=optimum-run topics=30.scaling-laws
BUDGET = 6 * GPT3.parameters * TOKENS
NEWEST = LAWS["fits"]["Besiroglu"]
chosen = {"Kaplan": kaplan(BUDGET)}
chosen |= {name: my_optimum(BUDGET, fit) for name, fit in LAWS["fits"].items()}
chosen["GPT-3's size, 300 billion tokens"] = (GPT3.parameters, TOKENS)
rows = [(name, N / 1e9, D / 1e9, D / N, my_waste(N, D, NEWEST)) for name, (N, D) in chosen.items()]
# The closed form beside the best of many sizes.
tried = [1e10 * 1.001**n for n in range(4000)]
scanned = min(tried, key=lambda N: my_loss(N, BUDGET / 6 / N, NEWEST))
print(f"{BUDGET:.2e} operations; Besiroglu, scanned: {scanned / 1e9:.1f} billion parameters")
N, D = chosen["Besiroglu"]
for times in (0.5, 0.9, 1.1, 2.0):
    print(f"{times:g} times that: {my_waste(times * N, D / times, NEWEST):.1%} wasted")
header = ["by", "billion parameters", "billion tokens", "tokens per parameter", "wasted"]
formats = dict.fromkeys(header[1:3], "{:,.1f}") | {header[3]: "{:.1f}", header[4]: "{:.0%}"}
plots.table(rows, columns=header, formats=formats)

# %% id=optimum-picture hidden topics=30.scaling-laws
sizes = [1e10 * 1.15**n for n in range(30)]
plots.curves(
    {
        name: (sizes, [my_loss(N, BUDGET / 6 / N, fit) for N in sizes])
        for name, fit in LAWS["fits"].items()
    },
    xlabel="parameters", ylabel="loss by the fit, nats per token", log_x=True, x_unit="count",
    title="One budget: the larger the model, the fewer its tokens",
)  # fmt: skip

# %% [markdown] id=law-answer
"""
Answer: (a) «517» billion parameters against «24.5»: «21» times. (b) «24.5» and «30.6» billion: «25 %», from two digits that were rounded away. (c) «39 %». "Wasted" is by the newest fit throughout; another fit would call another model the best.

The two newer papers agree that parameters and tokens grow nearly alike, and that Kaplan's models are too large. Pearce and Song (2406.12907) find the cause mainly in embeddings, which Kaplan et al. left out of *N*, and in small models. The curves of one fit are flat around the minimum: a size that is a tenth off wastes «0.4 %» of the budget. (Half or twice the size changes the loss by some thousandths only, and yet wastes «16 %».) So a planner may choose a size that divides well: layers by stages, heads by tensor ranks.

A fit is of one kind of data, one tokenizer and one recipe. And it knows nothing of use: who runs a model often, trains a smaller one for longer than is best for the loss alone.

**What this adds to the question.** "This" in the question is itself a choice, and published fits leave it open by a factor of 2 (the newer papers) to 20 (all). The rest of the lesson takes 175 billion parameters, as GPT-3 has: a model of that size cannot do without a layout.

## 2 · A step, predicted

`predict` in `dtcourse.planner` puts a step together from its kernels and messages. A product takes its tiles' time at the rate that was measured on this card. A message takes what the simulator's one function says ([lesson 05b](../lessons/05b-jobs-on-networks.ipynb)). Stages are run by the pipeline's own schedule. Nothing is built, and no GPU is needed.

A layout of a usual kind for 1,024 A100: 8 tensor ranks in a node, 16 stages, 8 data-parallel ranks that share optimizer states (ZeRO 1); 1,536 sequences of 2,048 tokens per step.

**Predict.** (a) How large is the MFU: 25 %, 50 % or 75 %? (b) What takes most beside matrix products: attention, tensor parallelism's messages or the bubble? (The bubble of 1F1B is (*pp* − 1) / *m* of the work, with *m* micro-batches.)

<details><summary>Answer</summary>
(a) About half. The best product that was ever measured on this card reaches 87 % of the peak, a long run sustains about 87 % of that, and messages, bubble and small kernels come on top. (b) The bubble is 15/192 = 8 % of the work. The messages are more: eight ranks of a node send in each layer, while nothing else is computed.
</details>
"""

# %% id=step topics=30.planner
from dtcourse.planner import Batch, Layout, Software, predict
from dtcourse.planner.ranges import likely

# Both with the likely number in place of each range: one prediction, and not one for each end.
GPU, PLAIN = likely((Hardware.of(CARD), Software()))
USUAL = Layout(dp_shard=8, pp=16, tp=8, stage=1, sequence_parallel=True)
print(predict(GPT3, GPU, USUAL, Batch(1536), software=PLAIN))

# %% [markdown] id=runs-predict
"""
Answer: (a) «n %»; (b) «tensor parallelism's messages, n %, then n».

What is such a number worth? The course's files hold published runs. Here are all that torchtitan's authors have published with layout and batch (Llama 3.1 on 8 to 512 H100), and those of MPT on 64 GPUs or more (A100, fully sharded).

**Predict.** Of these «48» runs, how many are predicted within 10 %: a quarter, three quarters or all? And are the misses too fast or too slow?

<details><summary>Answer</summary>
About three quarters. What is missed by much is predicted too fast: a planner leaves out what nobody told it, and hardly anything that it does not know makes a step shorter.
</details>
"""

# %% id=runs topics=30.planner
import json
import statistics

from dtcourse.course import places
from dtcourse.planner.runs import SOURCES

runs = SOURCES["torchtitan"]() + [run for run in SOURCES["mpt"]() if run.gpus >= 64]
told = [(run, run.predict()) for run in runs]
off = [abs(found.seconds / run.seconds - 1) for run, found in told]
inside = [found.interval[0] <= run.seconds <= found.interval[1] for run, found in told]
near, middle = sum(one <= 0.1 for one in off), statistics.median(off)
print(f"{len(runs)} runs, {near} within 10 %; the median error is {middle:.0%}")
print(f"{sum(inside)} are inside the interval that the prediction gives")
errors = json.loads((places.home() / "benchmarks/results/planner.json").read_text())
for source in SOURCES:
    fitted, other = errors[source]["as it is"], errors[source]["other sources"]
    print(f"{source:10} median {fitted['median']:.0%}", end="; nothing fitted to it: ")
    print(f"median {other['median']:.0%}, and a tenth of the runs above {other['p90']:.0%}")

# %% id=runs-table topics=30.planner
beside = ("70b 40gb", "fp8_")  # the neighbours of what is missed, too
shown = [
    (run, found)
    for (run, found), one in zip(told, off, strict=True)
    if one > 0.25 or run.gpus >= 512 or any(part in run.name for part in beside)
]
rows = []
for run, found in shown:
    gib = found.reserved_bytes / 2**30
    memory = f"{gib / run.gib:.2f}" if run.gib else "-"
    ratio = found.seconds / run.seconds
    rows.append((f"{run.source} {run.name}", found.seconds, run.seconds, ratio, memory))
header = ["run", "predicted s", "published s", "ratio", "ratio of bytes"]
plots.table(rows, columns=header, formats={"ratio": "{:.2f}"})

# %% id=runs-picture hidden topics=30.planner
by_source = {}
for run, found in told:
    places_of = by_source.setdefault(run.source, ([], []))
    places_of[0].append(run.gpus)
    places_of[1].append(found.seconds / run.seconds)
plots.curves(
    {"predicted as published": ([8, 512], [1.0, 1.0])}, points=by_source, xlabel="GPUs",
    ylabel="predicted / published", log_x=True, x_unit="count",
    title="Seconds of a step: all of these runs, misses too",
)  # fmt: skip

# %% [markdown] id=runs-answer
"""
Answer: «36» of «48», the median error is «5 %». «All» misses above 25 % are too fast, and for «two» runs of 405 billion parameters a quarter too few bytes are predicted: perhaps too little is counted of a pipeline's or of tensor ranks' buffers. The table has the neighbours of each miss. The 70B model is predicted at «0.72» on 64 cards of 40 GB, and at «0.95» on 128. Two things differ between these runs: on 64 cards each holds twice the states, and its micro-batch is half as large. So it is not the model that is missed; nearly full cards or messages may be, and two runs do not tell which. And float8 with a scale per tensor is at «n», with a scale per row at «0.7»: the planner has the first kind's kernels alone.

One number of the planner was fitted to each of three sources (the third, vTrain's runs on one node, is not shown here). The line "nothing fitted to it" is the honest error for a cluster that you have not measured: «11, 20 and 14 %» in the median, and for one run in ten more than «17, 62 and 32 %». That tells a good layout from one that takes twice as long, and does not tell two good ones apart.

**The largest published run in these files has 512 GPUs.** All that follows about 1,024 and more is the same arithmetic, held against nothing.

**What this adds to the question.** An answer for *N* GPUs is a prediction with an error. A plan that is better by 3 % is not known to be better.

## 3 · Search

With `predict`, a plan is the fastest layout that fits. How many layouts are there? Five degrees, ZeRO's stages, schedules, micro-batches, recomputation: on 1,024 devices 593,552 are possible (`benchmarks/planner_search.py`). Two formulas make a first planner:

- states take 16 bytes per parameter, shared by all devices (ZeRO 3 and model parallelism together);
- a step takes its work, and the bubble. Of equals, the layout with the fewest tensor ranks is taken.

**Predict.** (a) Which layout of 1,024 devices does this planner choose for 1,536 sequences? (b) Will the search choose the same, and what do the two formulas leave out?

<details><summary>Answer</summary>
(a) The one with no pipeline and with as little tensor parallelism as divides: 1,024 data ranks do not divide 1,536 sequences, 512 do. So tp 2 and 512 data ranks, each with three sequences. (b) No. The formulas know no messages: with three micro-batches of one sequence, all parameters are gathered six times per step, over the network.
</details>
"""

# %% id=my-plan topics=30.planner
def my_plan(devices, sequences, memory=80e9):
    """(relative seconds, tp, pp, data ranks): work and bubble; states shared by all devices."""
    found = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8, 16, 32):
            data = devices // (tp * pp)
            micro_batches, left = divmod(sequences, data)
            fits = 16 * GPT3.parameters / devices <= memory
            if fits and not left:
                found.append((1 + (pp - 1) / micro_batches, tp, pp, data))
    return min(found)


print(my_plan(1024, 1536))

# %% id=search topics=30.planner
from functools import cache

from dtcourse.planner import Space, search

# A part of all layouts, so that this lesson runs in seconds: Space() is all of them.
FEW = Space(
    tp=(2, 4, 8), cp=(1,), pp=(1, 4, 8, 16), schedules=("1f1b", "interleaved", "zb_v"), chunks=(2,),
    micro_batches=(1, 2), recompute=("none", "selective", "full"),
)  # fmt: skip


@cache
def best_of(devices, sequences):
    """All that is possible is counted, most is left out by bounds, and eight are predicted."""
    return search(GPT3, Hardware.of(CARD), devices, sequences, space=FEW, predictions=8)


found = best_of(1024, 1536)
print(found)

# %% [markdown] id=search-answer
"""
Answer: (a) tp 2, pp 1, 512 data ranks. (b) The search chooses «words of the best».

The first lines count the space: «n» layouts, of which «n» are possible, and by which equation the others are refused. Few are predicted. The rest is left out by **bounds**: closed forms that say of many layouts at once how many seconds they take *at least*. This is the first of these bounds: whatever the stages and data ranks are, all devices together have to do the work of all blocks.
"""

# %% id=show-bound topics=30.planner
from dtcourse.course import show
from dtcourse.planner.bounds import Bounds

show(Bounds.of_family)

# %% [markdown] id=why-predict
"""
A bound never lies above a prediction. So a layout whose bound is above the best's prediction cannot be the best, and need not be predicted. (Where `found.proven` is False, some layouts with a lower bound were not predicted; `prove=True` predicts them.)

A plan must answer questions. **Predict** for the best layout of the search: (a) what speaks against my plan: memory, the bubble or gathering parameters? (b) What speaks against the usual layout of section 2? (c) What if all activations were recomputed: how many percent slower, and how many bytes less?

<details><summary>Answer</summary>
(a) Gathering parameters. (b) «Three things of about the same size: products that are cut smaller, messages of twice as many tensor ranks, the bubble of twice as many stages.» (c) By the rule of thumb a third more operations, so up to 33 % slower, and less where the step is not all products. Activations almost vanish; states stay.
</details>
"""

# %% id=why-not topics=30.planner
mine = Layout(dp_shard=512, tp=2, stage=3, sequence_parallel=True)
print("mine:", found.why_not(mine, micro_batch=1, recompute="none"))
print("\nusual:", found.why_not(USUAL, micro_batch=1, recompute="none"))
print("\nnine stages:", found.why_not(Layout(dp_shard=28, pp=9, tp=4, stage=1)))
best = found.best
# Without dp_shard, what_if would give all data ranks to it: two changes at once.
full = found.what_if(recompute="full", dp_shard=best.layout.dp_shard)
print(f"\nbest: {best}\nwhat if recomputed: {full}")
print(f"{full.seconds / best.seconds - 1:+.0%} seconds, {full.nbytes / best.nbytes - 1:+.0%} bytes")

# %% id=frontier topics=30.planner
front = found.pareto()
leanest = front[-1]
print(f"{len(front)} layouts, from\n{front[0]} to\n{leanest}")
plots.frontier(front, limit=GPU.memory, asked=full, title="1,024 devices; X, all recomputed")

# %% [markdown] id=frontier-text
"""
Answer: (a) «gathers and scatters of sharded parameters», «n %» more. (b) «n %, words». (c) «+n %» seconds and «−n %» bytes. A layout that does not divide is answered with the equation that fails.

A dot of the picture is a layout to which none that was predicted is better in both: seconds and bytes. The dots are what a choice is between; everything above the line is worse in both than some dot. Turn the controls below to ask "what if" yourself: each answer is one prediction.
"""

# %% id=explorer topics=30.planner
plots.frontier_explorer(front, found.what_if, *found.controls(), limit=GPU.memory)

# %% [markdown] id=ladder-predict
"""
**What this adds to the question.** "How should we train this" is the first of a list, and "why not otherwise" is the difference to it, in seconds or bytes of a named kind.

## 4 · From 100 to 100,000

Now the same model, the same 1,536 sequences per step, and 128 to 98,304 devices.

**Predict.** (a) MFU with 98,304 devices: as on 1,024, half of that, or less than a quarter? (b) Why? (c) And with 16 times as many sequences per step?

<details><summary>Answer</summary>
(a) Less than a quarter. (b) 1,536 sequences over, say, 8 × 16 devices per copy make 768 copies with two sequences each. A pipeline of 16 stages with two micro-batches is mostly bubble. Without a pipeline a device has too few tokens to hide what is gathered. (c) Nearly as on 1,024: each copy has 32 sequences.
</details>
"""

# %% id=ladder topics=30.planner,30.communication-limits
from dtcourse.planner.why_not import words

LARGE = BATCHES[-1]
rows = []
for devices in DEVICES:
    for sequences in (BATCHES[0], LARGE):
        one = best_of(devices, sequences).best
        rows.append((devices, sequences, one.seconds, one.prediction.mfu, words(*one.key)))
header = ["devices", "sequences", "s per step", "MFU", "the best layout of the space"]
formats = dict.fromkeys(header[:2], "{:,}") | {"MFU": "{:.0%}"}
plots.table(rows, columns=header, formats=formats)

# %% id=ladder-picture hidden topics=30.communication-limits
plots.curves(
    {
        f"{sequences:,} sequences per step": (
            DEVICES, [best_of(n, sequences).best.prediction.mfu for n in DEVICES],
        )
        for sequences in (BATCHES[0], LARGE)
    },
    xlabel="GPUs", ylabel="MFU of the best layout", log_x=True, x_unit="count", y_unit="percent",
    title="The same batch on more devices, and a larger one",
)  # fmt: skip

# %% id=ladder-parts topics=30.communication-limits
rows = {}
for devices in DEVICES:
    one = best_of(devices, BATCHES[0]).best
    shares = {kind: took / one.seconds for kind, took in one.prediction.parts.items()}
    largest = sorted(shares.items(), key=lambda item: -item[1])[:6]
    rows[f"{devices:,}"] = ", ".join(f"{kind} {share:.0%}" for kind, share in largest)
for devices, told_parts in rows.items():
    print(f"{devices:>7} devices: {told_parts}")

# %% [markdown] id=tokens-predict
"""
Answer: (a) «n %» against «n %». (b) The parts say it: «bubble n %». (c) «n %».

So the batch decides. How many tokens must a device have? For fully sharded data parallelism (ZeRO 3) two products answer it. In a step of one micro-batch, a device with *t* tokens of a model of *P* parameters does 6 *P t* operations. All parameters are gathered twice, and gradients scattered once: 3 · 2 *P* bytes. These have to come into each *node* once, by all of its network cards together; inside the node they are passed on faster. Messages hide behind work if they take no longer.

**Predict** for A100s that reach 236 TFLOP/s in products, in nodes of eight with 200 GB/s in all: (a) from how many tokens per device and micro-batch on do the messages hide? (b) Does a model of 7 billion parameters need fewer?

<details><summary>Answer</summary>
(a) 6 P t / 236e12 = 6 P / 200e9, so t = 236e12 / 200e9 = 1,180 tokens, less than one sequence of 2,048. (b) No: P cancels. It is a property of the cards and the network alone.
</details>
"""

# %% id=my-tokens topics=30.communication-limits
def my_least_tokens(flops, bandwidth):
    """Tokens per device and micro-batch from which on ZeRO 3's messages take no longer than work.

    flops: that a device reaches; bandwidth: bytes per second of all cards of a node
    """
    operations_per_token, nbytes = 6, 3 * 2  # each per parameter
    return nbytes / bandwidth * flops / operations_per_token


REACHED = GPU.peak * GPU.reached * GPU.sustained
least = my_least_tokens(REACHED, GPU.card * GPU.cards)
print(f"{REACHED / 1e12:.0f} TFLOP/s: {least:,.0f} tokens by hand")

# %% id=tokens-run topics=30.communication-limits
from dataclasses import replace

SHORT = replace(GPT3, sequence=256)  # so that a device can have few tokens
rows = []
for micro_batch in (1, 2, 4, 8, 16, 32):
    layout, batch = Layout(dp_shard=512, stage=3), Batch(512 * micro_batch, micro_batch)
    one = predict(SHORT, GPU, layout, batch, software=PLAIN)
    share = one.parts.get("sharding", 0.0) / one.seconds
    rows.append((micro_batch * SHORT.sequence, one.seconds, share, one.mfu))
header = ["tokens per device", "s per step", "waits for messages", "MFU"]
formats = {header[0]: "{:,}"} | dict.fromkeys(header[2:], "{:.0%}")
plots.table(rows, columns=header, formats=formats)

# %% [markdown] id=axes-predict
"""
Answer: (a) «1,180» tokens by hand; in the planner's table the waiting falls below a tenth between «1,024 and 2,048». Beside the two products it counts attention, the part of a wire's rate that NCCL gets, and a first gather that nothing hides. (b) No. (Time alone is asked here; not all of these rows fit an A100's memory.)

With 1,536 sequences of 2,048 tokens, 98,304 devices have 32 tokens each. So ZeRO 3 alone is out of the question there, and the other axes have to share out a sequence's work. Each of them has a limit, too. Here one axis changes alone, at 1,536 sequences; the others stay as in the layout with 8 data ranks, 8 stages and 8 tensor ranks.

**Predict** for tp and pp, from 2 to 32, what grows and by how much: (a) Tensor ranks halve their work with each doubling. Do their messages halve, too? (b) The bubble of 1F1B, with 192 micro-batches? (c) And with 768 data ranks and 8 stages, how large is the bubble?

<details><summary>Answer</summary>
(a) No. Each rank sends (*tp* − 1) / *tp* of the same bytes: half of them with 2 ranks, nearly all from 8 on, and beyond the node by network cards. So their share grows with each doubling. (b) From 1/192 to 31/192 of the work: 0.5 % and 16 %. (c) Two micro-batches are left for each copy: 7/2, three and a half times the work. More data ranks make the pipeline's bubble.
</details>
"""

# %% id=axes topics=30.communication-limits
BASE = Layout(dp_shard=8, pp=8, tp=8, stage=1, sequence_parallel=True)
DEGREES = {
    "tp": (2, 4, 8, 16, 32), "pp": (2, 4, 8, 16, 32), "cp": (1, 2, 4, 8, 16),
    "dp_shard": (8, 32, 96, 384, 768),
}  # fmt: skip
axes = {}
for axis, degrees in DEGREES.items():
    for degree in degrees:
        layout = replace(BASE, **{axis: degree})
        one = predict(GPT3, GPU, layout, Batch(1536), software=PLAIN)
        axes[axis, degree] = layout.world, one

# %% id=axes-table topics=30.communication-limits
rows = []
for axis, degrees in DEGREES.items():
    each = [axes[axis, degree][1] for degree in degrees]
    shares = [{kind: s / one.seconds for kind, s in one.parts.items()} for one in each]
    first, last = shares[0], shares[-1]
    worst = max(last, key=lambda kind, first=first, last=last: last[kind] - first.get(kind, 0.0))
    named = f"{axis}, {degrees[0]} to {degrees[-1]}"
    rows.append((named, *(one.mfu for one in each), worst, first.get(worst, 0.0), last[worst]))
header = ["axis", "MFU 1", "2", "3", "4", "5", "what grows most", "share at 1", "at 5"]
plots.table(rows, columns=header, formats=dict.fromkeys([*header[1:6], *header[7:]], "{:.0%}"))

# %% id=axes-picture hidden topics=30.communication-limits
plots.curves(
    {
        axis: ([axes[axis, n][0] for n in degrees], [axes[axis, n][1].mfu for n in degrees])
        for axis, degrees in DEGREES.items()
    },
    xlabel="devices", ylabel="MFU", log_x=True, x_unit="count", y_unit="percent",
    title="One axis grows, the others stay: 1,536 sequences per step",
)  # fmt: skip

# %% [markdown] id=steps-predict
"""
Answer: (a) «tensor n % at 2 and n % at 32»; (b) «n %»; (c) «bubble n % of the step». So:

|axis|stops|because|
|:--|:--|:--|
|tp|where its messages are as long as its work|each doubling halves work and not messages; between nodes these are slower besides|
|pp|where stages come near to micro-batches|the bubble; and a stage has at least a layer|
|cp|where a rank's piece of the sequence is short|«what axes-table names: messages of keys and values, or the host»|
|data|at a sequence per rank; ZeRO 3 at some 1,200 tokens per device|fewer micro-batches for the pipeline; messages longer than the work|

Those of pp and of data are limits of the *batch*: more devices need more sequences per step.

**What this adds to the question.** On *N* GPUs tp stays in the node, pp stays short beside its micro-batches, and data parallelism takes the rest until the batch is used up. Then only a larger batch helps. Does it?

## 5 · What a larger batch is worth

More samples per step save steps, until the gradient's noise is gone ([lesson 08](../lessons/08-large-batch.ipynb)). With the critical batch *B*ᶜ, a loss is reached after *S*(*B*) = *S*ₘᵢₙ (1 + *B*ᶜ / *B*) steps. Kaplan et al. fitted the critical batch of language models to their runs: 2 · 10⁸ / *L*^(1 / 0.21) tokens, for a run that ends at a loss of *L*. Where it is not known, `large_batch.NoiseScale` measures its relative, the noise scale, while one trains.

**Predict** for a run that ends at 2 nats per token (an assumption): (a) is the critical batch nearer to 0.7, 7 or 70 million tokens? (b) Sixteen times 1,536 sequences per step: how many steps are left of 100, and how many times as many tokens does the run take?

<details><summary>Answer</summary>
(a) 2^(1/0.21) = 27, so 7.4 million, about 3,600 sequences. (b) (1 + 3600/24576) / (1 + 3600/1536) = 1.15 / 3.34 = 0.34: 34 steps, and 16 · 0.34 = 5.5 times the tokens.
</details>
"""

# %% id=my-steps topics=30.convergence-at-scale
KAPLAN = LAWS["kaplan"]


def critical_sequences(loss):
    """Kaplan's critical batch of a run that ends at this loss, in sequences."""
    return KAPLAN["B_star"] / loss ** (1 / KAPLAN["alpha_B"]) / GPT3.sequence


def my_steps(sequences, loss=2.0):
    """Steps to the same loss as TOKENS in batches of BATCHES[0]."""
    critical, known = critical_sequences(loss), BATCHES[0]
    return TOKENS / (known * GPT3.sequence) * (1 + critical / sequences) / (1 + critical / known)


rows = []
for loss in (2.5, 2.0, 1.8):
    left = [my_steps(n, loss) / my_steps(BATCHES[0], loss) for n in BATCHES]
    tokens = left[-1] * BATCHES[-1] / BATCHES[0]
    rows.append((loss, critical_sequences(loss), *left[1:], tokens))
header = ["ends at loss", "critical batch, sequences", *(f"steps with {n:,}" for n in BATCHES[1:]),
          f"tokens with {BATCHES[-1]:,}"]  # fmt: skip
formats = {header[1]: "{:,.0f}"} | dict.fromkeys(header[2:], "{:.2f}")
plots.table(rows, columns=header, formats=formats)

# %% [markdown] id=goodput-predict
"""
Answer: (a) 7.4 million tokens, «3,600» sequences. (b) «0.34» of the steps, and «5.5» times the tokens. The assumed loss matters: for a run that ends at 2.5 the critical batch is «a third» of that, and 24,576 sequences take «9.3» times the tokens.

So a batch of 24,576 sequences keeps 98,304 devices busy, and they do «5.5» times the work to the same loss. MFU alone does not show it. (The fit is of one paper, on small models. Its size for your run is a guess until you measure it.)

**What this adds to the question.** Beyond the critical batch a larger one keeps more GPUs busy, and reaches the loss hardly sooner.

## 6 · What failures take

Each device fails now and then, and one failure stops all. Llama 3's run had 419 unexpected interruptions in 54 days on 16,384 GPUs. With the same reliability per device, 98,304 have a failure every half an hour. [Lesson 25b](../lessons/25b-detect-and-recover.ipynb) finds the best interval between saves; `expected_waste` is the exact sum of what is lost. **Goodput** is the part of the time that is left for steps that count.

**Predict**, with saves that stop training for 30 s and restarts of 10 minutes (both assumed): (a) goodput with 1,024 devices, and with 98,304: 98 %, 90 %, 60 % or 30 %? (b) Llama 3's paper reports more than 90 % effective time on 16,384. Will the sum agree? (c) If a step shrinks in proportion, from how many devices on does one more make the run *longer*: 25,000, 250,000 or never?

<details><summary>Answer</summary>
(a) 98 % and 60 %. A restart alone takes 10 of the 31 minutes between two failures of 98,304 devices. (b) Not quite: 88 %. Something that is assumed here costs less there: a restart, or a save. (c) At about 250,000: there a failure comes every 12 minutes, and what a device adds, its failures take away.
</details>
"""

# %% id=my-goodput topics=30.failures-at-scale
from dtcourse.fault_tolerance import LLAMA_3, FailingJob, best_interval, expected_waste


def my_goodput(devices, save=30.0, restart=600.0):
    """(the part of the time that trains, the best seconds between two saves)."""
    job = FailingJob(save, LLAMA_3.mtbf(devices), restart)
    every = best_interval(lambda seconds: expected_waste(job, seconds), 1.0, 2 * job.mtbf)
    return 1 - expected_waste(job, every), every


rows = []
for devices in (1024, 8192, 16_384, 98_304):
    slow, every = my_goodput(devices)
    quick, often = my_goodput(devices, save=3.0, restart=120.0)
    rows.append((devices, LLAMA_3.mtbf(devices) / 60, slow, every / 60, quick, often / 60))
header = ["devices", "min between failures", "goodput, 30 s and 10 min", "min between saves",
          "goodput, 3 s and 2 min", "min between its saves"]  # fmt: skip
formats = {"devices": "{:,}"} | dict.fromkeys((header[1], header[3], header[5]), "{:,.1f}")
plots.table(rows, columns=header, formats=formats | dict.fromkeys(header[2:5:2], "{:.0%}"))

# %% id=goodput-turn topics=30.failures-at-scale
for save, restart in ((30.0, 600.0), (30.0, 300.0), (3.0, 600.0)):
    there, large = (my_goodput(n, save, restart)[0] for n in (LLAMA_3.devices, DEVICES[-1]))
    print(f"saves of {save:g} s, restarts of {restart / 60:g} min", end=": ")
    print(f"{there:.1%} on 16,384, {there / 0.9:.2f} of the published 90 %", end="; ")
    print(f"{large:.1%} on {DEVICES[-1]:,}")
many = [2048 * 2 ** (n / 4) for n in range(41)]
useful = {
    "saves of 30 s, restarts of 10 min": [n * my_goodput(n)[0] for n in many],
    "3 s, 2 min": [n * my_goodput(n, 3.0, 120.0)[0] for n in many],
}
for name, found_useful in useful.items():
    most = max(range(len(many)), key=found_useful.__getitem__)
    print(f"{name}: {many[most]:,.0f} devices do most", end=", ")
    print(f"as much as {found_useful[most]:,.0f} that never fail")

# %% id=goodput-picture hidden topics=30.failures-at-scale
plots.curves(
    {"nothing fails": (many, many)} | {name: (many, one) for name, one in useful.items()},
    xlabel="devices", ylabel="devices' worth of steps that count", log_x=True, log_y=True,
    x_unit="count", y_unit="count", title="What a larger cluster adds, by Llama 3's failures",
)  # fmt: skip

# %% [markdown] id=days-predict
"""
Answer: (a) «98 %» and «60 %». (b) «88 %», a ratio of «0.98» to "more than 90 %". Restarts of five minutes make it «90.4 %», saves of 3 s «92.6 %»: one published number does not tell which of them it was. MegaScale reports more than 90 %, too. (c) Near «250,000» devices. With saves of 3 s and restarts of two minutes 98,304 devices keep «89 %», and the curve turns at «1.2 million». (Another count is worse: Kokolis et al. expect a failure every 0.23 hours at 131,072 GPUs, a rate 1.7 times Llama 3's.)

**What this adds to the question.** At 1,024 devices failures take «2 %» of the time, at 98,304 «40 %». Restarts of half the length then give back «11» points of these, saves of a tenth of it «8».

## 7 · Days

Now all of it in one product: steps to the loss, seconds per step, and goodput.

**Predict** for 98,304 devices: (a) which batch is the quickest: 1,536, 6,144 or 24,576 sequences? (b) 98,304 are twelve times 8,192. How many times sooner is the model trained, each number with its best batch: 12, 6 or 3 times? (c) How many GPU-days more does that cost?

<details><summary>Answer</summary>
(a) By hand the one in the middle: it has four times the work per step of the smallest, in not much more time, and 47 % of its steps. The largest has 34 %, and takes twice as long. (b) «About 3.» (c) «Twelve times the devices for a third of the time: about four times the GPU-days.»
</details>
"""

# %% id=my-days topics=30.planner,30.failures-at-scale,30.convergence-at-scale
def my_days(devices, sequences):
    """Until the loss is reached: steps, seconds of each, and the part of the time that counts."""
    seconds = best_of(devices, sequences).best.seconds
    return my_steps(sequences) * seconds / my_goodput(devices)[0] / DAY


days = {(n, batch): my_days(n, batch) for n in DEVICES for batch in BATCHES}
rows = []
for n in DEVICES:
    best = min(BATCHES, key=lambda batch, n=n: days[n, batch])
    rows.append((n, *(days[n, batch] for batch in BATCHES), best, n * days[n, best]))
header = ["devices", *(f"days with {batch:,}" for batch in BATCHES), "best batch", "GPU-days"]
formats = {"devices": "{:,}", "best batch": "{:,}", "GPU-days": "{:,.0f}"}
plots.table(rows, columns=header, formats=formats | dict.fromkeys(header[1:4], "{:.2f}"))

# %% id=days-picture hidden topics=30.planner,30.failures-at-scale,30.convergence-at-scale
first, known = DEVICES[0], BATCHES[0]
alone = [my_steps(known) * best_of(n, known).best.seconds / DAY for n in DEVICES]
plots.curves(
    {
        "the first point, shared out": (DEVICES, [alone[0] * first / n for n in DEVICES]),
        f"{known:,} sequences, nothing fails": (DEVICES, alone),
        f"{known:,} sequences, failures": (DEVICES, [days[n, known] for n in DEVICES]),
        "the best batch, failures": (
            DEVICES, [min(days[n, batch] for batch in BATCHES) for n in DEVICES],
        ),
    },
    xlabel="GPUs", ylabel="days", log_x=True, log_y=True, x_unit="count",
    title="Days until the same loss, predicted",
)  # fmt: skip

# %% [markdown] id=days-answer
"""
Answer: (a) «6,144», «1.4» days against «2.5» and «2.2». (b) «n» days against «n»: «3» times. (c) «n» against «n» GPU-days.

**What this adds to the question.** How to train this on *N* GPUs has an answer for each *N*, and the answers for large *N* buy less and less: first the batch is used up, then the steps that a batch can save, then the time between failures. Which *N* to take depends on what a day is worth.

## 8 · Break it

**The peak with zeros** (silent). Some data sheets print the rate with structured sparsity, for weights of which half are zeros. It is twice the dense rate. A planner takes whatever it is told.

**Predict.** The peak is entered twice too large. (a) Does anything fail? (b) How many times shorter is the predicted step: 2, more, or less? (c) Is the layout that it chooses the same?

<details><summary>Answer</summary>
(a) Nothing. (b) Less than 2: messages, memory and the host are as slow as before. (c) Not necessarily: with quicker products messages weigh more, so the search shuns them more. The MFU looks low, as if the layout were to blame.
</details>
"""

# %% id=break-peak topics=30.planner
doubled = Hardware.of(CARD, peak=2 * GPU.peak)
wrong = search(GPT3, doubled, 1024, 1536, space=FEW, predictions=8)
right = best_of(1024, 1536)
for name, one in (("right", right.best), ("twice the peak", wrong.best)):
    print(f"{name:15}{one}")
layout, batch, software = wrong.best.key
real = predict(GPT3, GPU, layout, batch, software=software)
print(f"what the second takes on the real card: {real.seconds:.4g} s")

# %% id=break-peak-mend topics=30.planner
known_run = next(run for run in runs if run.hardware.name == CARD)
for factor in (2.0, 1.0):
    ratio = known_run.predict(peak=factor * known_run.hardware.peak).seconds / known_run.seconds
    print(f"{known_run.name}, peak x {factor:g}: predicted / published = {ratio:.2f}")

# %% [markdown] id=break-fits-predict
"""
Answer: (a) Nothing. (b) «1.n» times. (c) «the same / another; on the real card it takes n s, n % more than the best». *Diagnosis:* no number of the plan looks impossible. What tells is a run that somebody has measured: before any plan, predict one published run on that card, and look at the ratio, «0.55» here (MPT, 70 billion parameters on 64 A100). *Repair:* the dense rate, and the ratio is «1.0» again. Then measure your own card: a product of your model's shapes, a block, an all-reduce; `Hardware.of(..., measured=Measured(...))` takes them.

**It fits, likely** (silent). `fits` is said of the likely bytes. What the allocator holds beside tensors, and what CUDA and NCCL take, are known as ranges only.

**Predict.** Of the best layouts for the four numbers of devices (1,536 sequences), how many fit for sure? And what does it cost to ask for that: 1 %, 10 % or 50 % of the time?

<details><summary>Answer</summary>
The fewer devices, the fuller they are: the fastest layout uses what memory there is. So the small clusters' plans are the doubtful ones. It costs little where a slightly leaner layout is almost as fast: the frontier says how little.
</details>
"""

# %% id=break-fits topics=30.planner
doubtful = []
for devices in DEVICES:
    whole = best_of(devices, 1536).predict(best_of(devices, 1536).best)
    least, most = (nbytes / 2**30 for nbytes in whole.bytes_interval)
    print(f"{devices:6,} devices: fits {whole.fits}, surely {whole.surely_fits}", end=", ")
    print(f"{whole.peak_bytes / 2**30:.1f} GiB, {least:.1f} to {most:.1f}")
    if not whole.surely_fits:
        doubtful.append(devices)
for devices in doubtful:
    card, likely_best = Hardware.of(CARD), best_of(devices, 1536).best
    sure = search(GPT3, card, devices, 1536, space=FEW, predictions=8, sure=True)
    more = sure.best.seconds / likely_best.seconds - 1
    print(f"{devices:,} devices, surely: {more:+.1%}\n{sure.best}")

# %% [markdown] id=break-fits-answer
"""
Answer: «n» of 4 surely fit; asking for it costs «n %». *Diagnosis:* the interval of the bytes ends above the device's memory, and `print(found)` says so in its last line. A program that reads `best.prediction.fits` alone never sees it; the job may, when fragments grow. *Repair:* `sure=True`.

## 9 · The real thing

No framework asks a planner. They take flags, and each can do a part of what there is. Megatron-LM has optimizer states shared over data ranks (ZeRO 1), 1F1B and interleaved stages; it has no ZB-V, and no ZeRO 3 beside its pipelines in the form that is planned here. So the space is made smaller first, and the plan becomes a command.

**Predict.** How much slower than the best of section 3 is the best plan that Megatron-LM can run: 2 %, 10 % or 40 %?

<details><summary>Answer</summary>
Some percent: with interleaved stages a bubble of (*pp* − 1) / (*chunks* · *m*) of the work is left, and zero-bubble schedules save most of that. It is less than the error of a prediction on a cluster that nobody has measured (section 2).
</details>
"""

# %% id=megatron topics=30.planner
def megatron_flags(choice):
    """What one types: the part of Megatron-LM's command that says the layout. Take this home."""
    layout, batch, software = choice.key
    flags = {
        "tensor-model-parallel-size": layout.tp, "pipeline-model-parallel-size": layout.pp,
        "micro-batch-size": batch.micro_batch, "global-batch-size": batch.sequences,
    }  # fmt: skip
    if layout.stage > 1 or layout.schedule not in ("1f1b", "interleaved"):
        raise ValueError(f"no flags for ZeRO {layout.stage} with {layout.schedule}")
    if layout.schedule == "interleaved":
        layers = GPT3.layers // (layout.pp * layout.chunks)
        flags["num-layers-per-virtual-pipeline-stage"] = layers
    if software.recompute == "full":
        flags |= {"recompute-granularity": "full", "recompute-method": "uniform"}
        flags["recompute-num-layers"] = 1
    elif software.recompute == "selective":
        flags["recompute-granularity"] = "selective"
    if layout.stage == 1 and layout.dp_replicate > 1:
        flags["num-distributed-optimizer-instances"] = layout.dp_replicate
    switches = {"sequence-parallel": layout.sequence_parallel}
    switches["use-distributed-optimizer"] = layout.stage == 1
    told = [f"--{name} {value}" for name, value in flags.items()]
    return told + [f"--{name}" for name, wanted in switches.items() if wanted]

# %% id=megatron-run topics=30.planner
from dtcourse.course import expect_error

MEGATRON = replace(FEW, stages=(0, 1), schedules=("1f1b", "interleaved"), chunks=(2, 4, 6))
theirs = search(GPT3, Hardware.of(CARD), 1024, 1536, space=MEGATRON, predictions=8)
print(theirs.best)
print(*megatron_flags(theirs.best), sep=" \\\n  ")
ratio = theirs.best.seconds / right.best.seconds
print(f"{ratio - 1:+.1%} beside the best of section 3")
with expect_error(ValueError, match="no flags"):
    other = replace(theirs.best.layout, schedule="zb_v", chunks=1)
    megatron_flags(replace(theirs.best, layout=other))

# %% [markdown] id=real-table
"""
Answer: «n %».

||the course|others|
|:--|:--|:--|
|a step, predicted|`planner.predict`|vTrain (2312.12391): kernels traced on the target GPU; Calculon: formulas|
|layouts, searched|`planner.search`, `why_not`|Alpa (2201.12023): a compiler's; most teams: a few runs by hand|
|what fits|`Prediction.memory`, `sure=True`|a calculator in Megatron-LM's tools for theoretical memory; torchtitan's memory estimation on fake tensors|
|critical batch|`large_batch.NoiseScale`|GPT-NeoX: `log_gradient_noise_scale`|
|failures|`fault_tolerance.expected_waste`|a scheduler's log, and [lesson 25b](../lessons/25b-detect-and-recover.ipynb)'s sums|

vTrain's authors claim a mean error of 8.4 % on one node and 14.7 % on several, with traces of the very GPU. «Ours on their single-node runs, as a median and not as a mean: 6 % with one number fitted to them, 20 % without.»

## 10 · Two questions about a cluster

**1.** Llama 3.1 405B on 16,384 H100 with 2,048 sequences of 8,192 tokens per step, tp 8 and no context parallelism. How many stages does the search choose of 8 and 16, what is the MFU, and what is the largest part of the step beside products and attention?

**2.** The network between nodes has half its rate: 12.5 GB/s per A100. How much slower is the best layout of 1,024 devices (section 3)? How much of that does a new search win back?

<details><summary>Answers, computed in the next cell</summary>

1. «pp n, MFU n %, kind n %». Nothing published in the course's files is that large: take it as the planner's word alone.
2. «n %; n %».

</details>
"""

# %% id=questions topics=30.planner
from dtcourse.planner.runs import llama

some = replace(FEW, tp=(8,), pp=(8, 16), recompute=("none", "full"))
large = search(llama("405B", 8192), "H100 SXM", 16384, 2048, space=some, predictions=8).best
lost = {k: v for k, v in large.prediction.parts.items() if k not in ("products", "attention")}
kind = max(lost, key=lost.get)
print(f"1. {large}\n   {kind} {lost[kind] / large.seconds:.0%}")
slow_card = Hardware.of(CARD, card=GPU.card / 2)
layout, batch, software = right.best.key
same = predict(GPT3, slow_card, layout, batch, software=software).seconds
anew = search(GPT3, slow_card, 1024, 1536, space=FEW, predictions=8).best
print(f"2. the same layout {same / right.best.seconds - 1:+.1%}", end="; ")
print(f"the best one there {anew.seconds / right.best.seconds - 1:+.1%}: {words(*anew.key)}")

# %% [markdown] id=remember
"""
## What to remember

- How should we train this on *N* GPUs? By the fastest layout that surely fits, of a space that is counted; why not otherwise is a difference in seconds or bytes that has a name.
- A prediction has an error. Hold the planner against a run that somebody has measured on such cards, before any plan, and show the ratio. Where nobody has measured, 10 to 20 % is the median, and one run in ten is off by far more; beyond the largest published run nobody knows.
- Each doubling of tp halves work and not messages; pp ends where stages come near to micro-batches, data parallelism at its last sequence. ZeRO 3 needs as many tokens per device and micro-batch as a device's FLOP/s divided by a node's bytes per second, whatever the model.
- So large clusters need large batches; beyond the critical batch these save few steps.
- Failures come in proportion to devices. With the times that are assumed here, at 100,000 the restart counts for more than the save.
- Published laws of the best model size differ by factors; around each one's optimum the loss is flat.

## Exercises

`dtcourse start 30`, then `dtcourse check 30`:

1. **The cheapest plan in time**, with its interval between saves.
2. **Explain published runs**: which part of their seconds grows with the length?
3. **Which plan is wrong, and how?**
4. **Choose** how many devices and which batch, for a deadline.

## Further

- Training a smaller model for longer than is best for its loss, where use costs more than training: Sardana et al. 2401.00448.
- Zhang et al. (2410.21676) find that the critical batch grows with the tokens of a run, and hardly with the model.
- A model with experts has two sizes, all parameters and those that a token goes through: `Model(experts=...)`, [lesson 21](../lessons/21-mixture-of-experts.ipynb).

## Papers

Kaplan et al. 2001.08361 · Hoffmann et al. 2203.15556 · Besiroglu et al. 2404.10102 · Pearce and Song 2406.12907 · McCandlish et al. 1812.06162 · Narayanan et al. 2104.04473 · Bang et al. 2312.12391, vTrain · Grattafiori et al. 2407.21783, Llama 3 · Jiang et al. 2402.15627, MegaScale · Kokolis et al. 2024, Revisiting reliability in large-scale machine learning research clusters · Young 1974 · Daly 2006.
"""
