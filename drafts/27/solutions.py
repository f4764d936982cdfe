# %% [markdown] id=title
"""
# Exercises 27 · Ranks that are not alike

A step of two means, a division of work, a diagnosis, and a decision that is run; each has a target in numbers. Run the cell under your answer: it says what is right, and asks a question about what is not yet.
What you need is in [lesson 27](../lessons/27-heterogeneous.ipynb); `dtcourse check 27` runs all checks at once.
"""

# %% id=imports
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse.course import check

# %% [markdown] id=means
"""
## 1 · Two means in one backward

`two_means(model, x, y, weight)` makes one step's gradient. `model` is PyTorch's `DistributedDataParallel`, and there are no gradients yet. `x`, (*n*, 6), and `y`, (*n*,), are this rank's samples: ranks have different numbers of them, and a rank may have none. A label of −100 counts in no cross-entropy. Over the samples of *all* ranks the loss is

- the weighted mean of the cross-entropy, as `F.cross_entropy(logits, y, weight=weight)` of one process on all samples has it: `weight`, (4,), is of the classes;
- plus a hundredth of the mean of (logsumexp of a sample's logits)², over all samples, also those of label −100.

**Target:** in double precision the gradient of one process to 1e-10, on 1, 2, 3 and 4 ranks, also where a rank has no sample, or none whose label counts; DDP averages once per step, and beside that all ranks together send at most 64 (*p* − 1) bytes.

An answer that uses `dtcourse.heterogeneous`, `dtcourse.data_parallel` or `dtcourse.parameters` is refused.
"""

# %% id=means-answer solution=two_means
def two_means(model, x, y, weight):
    """Leave the gradient of the loss over all ranks' samples in every parameter of `model`."""
    ### BEGIN SOLUTION
    counted = weight[y[y >= 0]].sum()
    told = torch.stack([counted, counted.new_tensor(len(y))])
    dist.all_reduce(told)
    logits = model(x)
    loss = F.cross_entropy(logits, y, weight=weight, reduction="sum") / told[0]
    loss = loss + 0.01 * logits.logsumexp(1).square().sum() / told[1]
    (dist.get_world_size() * loss).backward()  # DDP divides by it
    ### END SOLUTION

# %% id=means-try
def on_a_rank(all_x, all_y):
    """The gradient of a linear layer, with rank 0's samples and rank 1's."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 4).double())
    rank = dist.get_rank()
    two_means(model, all_x[rank], all_y[rank], torch.tensor([1.0, 2.0, 1.0, 0.5]).double())
    return model.module.weight.grad


X = torch.randn(5, 6, dtype=torch.double)
Y = torch.tensor([0, 3, -100, 1, 2])
# Try it here: from dtcourse import launch; launch(on_a_rank, 2, X.split([4, 1]), Y.split([4, 1]), backend="ring")[0]

# %% id=means-check check=check_two_means points=8
check("two_means", two_means)

# %% [markdown] id=shares
"""
## 2 · The quickest shares

In the lesson a rank's time is in proportion to its samples, a limit is a wall, and messages are the same for all ways. Real ranks have a cost of their own per pass, whatever the samples are (launches of kernels, reading weights). What does not fit at once is done in pieces. And each rank that takes part makes the messages of all a little longer. A rank *r* that has *n* samples passes them in ⌈*n* / `limits[r]`⌉ pieces, and works for

> `fixed[r]` seconds for each piece, and `each[r]` for each sample; not at all where *n* is 0.

A step takes as long as the slowest rank works, and `join` seconds for each rank that has samples, but for the first. Return the shares, whole numbers whose sum is `total`, with which a step is the quickest.

**Target:** on 80 clusters of 2 to 8 ranks, drawn anew each time, no division whatsoever is quicker; each answered within a second.

An answer that uses `dtcourse.heterogeneous` or `dtcourse.planner` is refused.
"""

# %% id=shares-answer solution=quickest_shares
def quickest_shares(total, fixed, each, limits, join):
    """A list: the samples of each rank."""
    ### BEGIN SOLUTION
    ranks = range(len(each))

    def most(rank, seconds):
        """Samples that this rank can do in so many seconds."""
        piece = fixed[rank] + limits[rank] * each[rank]
        whole = int(seconds // piece)
        rest = int((seconds - whole * piece - fixed[rank]) // each[rank])
        return whole * limits[rank] + min(limits[rank], max(0, rest))

    def can_do(number, seconds):
        """What so many ranks can do at the most, those that can do the most: samples by rank."""
        able = sorted(((most(rank, seconds), rank) for rank in ranks), reverse=True)
        return {rank: samples for samples, rank in able[:number]}

    best = None
    for number in range(1, len(each) + 1):
        low, high = 0.0, 1e-3
        while sum(can_do(number, high).values()) < total:
            high *= 2
        for _ in range(50):
            middle = (low + high) / 2
            if sum(can_do(number, middle).values()) < total:
                low = middle
            else:
                high = middle
        seconds = high + join * (number - 1)
        if best is None or seconds < best[0]:
            best = seconds, can_do(number, high)
    shares = [best[1].get(rank, 0) for rank in ranks]
    # What is too much may be taken off anywhere: nobody is slower with less.
    for rank in ranks:
        shares[rank] -= min(shares[rank], sum(shares) - total)
    return shares
    ### END SOLUTION

# %% id=shares-try
# Try it here: the second rank is slower, and has nothing to pay per piece; each holds two samples.
# With [2, 3] a step takes 6 + 1 = 7 seconds, with [3, 2] 7 + 1 = 8; one rank alone takes 11 or 10.
# quickest_shares(5, fixed=[2.0, 0.0], each=[1.0, 2.0], limits=[2, 2], join=1.0)

# %% id=shares-check check=check_quickest_shares points=8
check("quickest_shares", quickest_shares)

# %% [markdown] id=diagnose
"""
## 3 · Which balance is broken, and how?

A balance begins with equal shares. Before each step after the first, it gives every rank its proportion of the batch by what the rank did in the step just before, in samples per second; each proportion is rounded up or down to whole samples. (It has no hysteresis, so shares move in each step.) You get its record: `shares[t][r]`, the samples of rank *r* in step *t*, and `seconds[t][r]`, which that rank told for its own work of that step. Ranks differ in speed, a rank's speed may change for good in the middle of the run, and each measurement has noise. Return what is wrong, and where:

- `("healthy", None)`;
- `("waits", r)`: rank *r* tells the seconds until all ranks have ended their work, and not its own;
- `("stale", r)`: of rank *r*, the balance always takes what it told in step 0;
- `("exchanged", (r, s))`: the balance takes rank *r*'s speed for rank *s*'s, and the other way round; *r* < *s*;
- `("behind", None)`: it takes what was told in the step before the one just before (and in step 1 still gives equal shares);
- `("not per sample", None)`: it takes a rank's speed for one over its seconds, whatever its samples were.

**Target:** 30 of 30 records of 3 to 5 ranks, drawn anew each time, and shuffled.
"""

# %% id=diagnose-answer solution=diagnose_balance
def diagnose_balance(shares, seconds):
    """Returns what is wrong; and the rank, the two ranks, or None."""
    ### BEGIN SOLUTION
    steps, p, total = len(shares), len(shares[0]), sum(shares[0])

    def speeds(t):
        return [n / s for n, s in zip(shares[t], seconds[t], strict=True)]

    def explains(made):
        """Whether shares are those of these speeds: made(t), from what was told up to step t."""
        for t in range(1, steps):
            found = made(t - 1)
            for n, one in zip(shares[t], found, strict=True):
                if abs(n - total * one / sum(found)) >= 1:
                    return False
        return True

    def stale(r):
        return lambda t: [speeds(0)[r] if one == r else own for one, own in enumerate(speeds(t))]

    def exchanged(r, s):
        places = [{r: s, s: r}.get(one, one) for one in range(p)]
        return lambda t: [speeds(t)[place] for place in places]

    if explains(speeds):
        for r in range(p):
            # Who waits tells the longest of all, which another rank's own work took, unless it was the longest itself.
            longest = [seconds[t][r] == max(seconds[t]) for t in range(steps)]
            shared = any(seconds[t].count(max(seconds[t])) > 1 for t in range(steps))
            if all(longest) and shared:
                return "waits", r
        return "healthy", None
    for r in range(p):
        if explains(stale(r)):
            return "stale", r
        for s in range(r + 1, p):
            if explains(exchanged(r, s)):
                return "exchanged", (r, s)
    if explains(lambda t: speeds(t - 1) if t else [1.0] * p):
        return "behind", None
    return "not per sample", None
    ### END SOLUTION

# %% id=diagnose-try
# Try it here: rank 1 is half as fast, and gets half as much in step 1.
# diagnose_balance([[6, 6], [8, 4]], [[6.0, 12.1], [8.1, 8.0]])  # ("healthy", None)

# %% id=diagnose-check check=check_diagnose_balance points=10
check("diagnose_balance", diagnose_balance)

# %% [markdown] id=choose
"""
## 4 · Share or leave out, and how patient?

Three ranks train in lock-step. At first two of them are slow for a while now and then; later the third one becomes slow, and stays so. A rank's step costs it something beside its samples, and the more, the slower it is. After each step all ranks know everyone's speed, and a better division, if there is one that promises at least a twentieth. It is taken when it has been better `patience` times in a row, and each time all ranks stand still for a while, as data and states move. You know none of these figures.

`measure(way, patience)` trains, and returns a tuple of one number, the seconds of the run. With the way `"share"` the better division is in proportion to speed. With `"leave out"` a rank that has less than two thirds of the fastest one's speed gets nothing, and the others equal shares. At most 7 of the 12 choices may be measured. Return the choice that you would train with: `(way, patience)`.

**Target:** on 6 clusters, drawn anew each time, at most 1.01 times the best choice's time.

An answer that uses `dtcourse.heterogeneous` is refused.
"""

# %% id=choose-answer solution=choose_patience
def choose_patience(measure, ways, patiences):
    """measure(way, patience) -> (seconds,); ways; patiences: those that are possible, in rising order."""
    ### BEGIN SOLUTION
    seen = {}

    def seconds(way, patience):
        if (way, patience) not in seen:
            seen[way, patience] = measure(way, patience)[0]
        return seen[way, patience]

    # The way first, at a patience in the middle; then every patience with the better one.
    middle = patiences[len(patiences) // 2]
    way = min(ways, key=lambda way: seconds(way, middle))
    for patience in patiences:
        seconds(way, patience)
    return min(seen, key=seen.get)
    ### END SOLUTION

# %% id=choose-try
# Try it here: what your function measures on a first cluster, in seconds, and what it chooses.
# from dtcourse.course.judging import trials
# trials.practise("choose_patience", choose_patience)

# %% id=choose-check check=check_choose_patience points=10
check("choose_patience", choose_patience)
