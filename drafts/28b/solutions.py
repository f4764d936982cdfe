# %% [markdown] id=title
"""
# Exercises 28b · What a server learns, and how to bound it

A masked sum among neighbours, a secret from shares of which some are wrong, a private gradient over ranks, a diagnosis, and a decision that is run; each has a target in numbers. Run the cell under your answer: it says what is right, and asks a question about what is not yet.
What you need is in [lesson 28b](../lessons/28b-privacy.ipynb); `dtcourse check 28b` runs all checks at once.
"""

# %% id=imports
import torch
import torch.distributed as dist

from dtcourse.course import check

# %% [markdown] id=masked-text
"""
## 1 · Masks among neighbours

With 10,000 clients no client can agree on a mask with every other one. So each has masks with a few *neighbours* alone (Bell et al. 2020), and one of its own. Write the three parts. Each gets only what it may know.

- `masked(u, x, pairs, own)`: what client *u* sends. `x` is (*n*,), int32, and stays as it is; sums are modulo 2³², as int32 wraps around. `pairs` is `{neighbour: seed}`; both of a pair have the same seed, a whole number. `own` is the seed of its own mask, which only *u* knows. Returns (*n*,), int32.
- `told(u, pairs, own, sent)`: client *u* has sent, and hears who has: `sent`, a sorted list of numbers. Returns what it tells the server: `(seed or None, {neighbour: seed})`.
- `unmasked(sent, answers)`: the server has `{client: what it sent}` and `{client: what it told}`, of the same clients. Returns the sum of their `x`, (*n*,), int32.

`mask_of` makes a mask of a seed; you may take another one, whose numbers are uniform over all of int32. A client that has not sent does not answer either.

**Target**, with 5 to 9 clients: the sum is exact, to the bit, whoever has not sent; what is sent is like chance, also for somebody who knows all seeds of the pairs; and no client tells a pair's seed of a neighbour that has sent.

An answer that uses `dtcourse.federated` is refused.
"""

# %% id=masked solution=masked_sum
def mask_of(seed, n):
    """(n,) of int32, the same for the same seed. It is here for you to use; another one may stand in its place."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (n,), generator=draw).int()


def masked(u, x, pairs, own):
    """x (n,) of int32: returns what client u sends, (n,) of int32."""
    ### BEGIN SOLUTION
    y = x + mask_of(own, len(x))
    for v, seed in pairs.items():
        pair = mask_of(seed, len(x))
        y = y + pair if u < v else y - pair
    return y
    ### END SOLUTION


def told(u, pairs, own, sent):
    """What client u tells the server: (a seed or None, {neighbour: seed})."""
    ### BEGIN SOLUTION
    missing = {v: seed for v, seed in pairs.items() if v not in sent}
    return own, missing
    ### END SOLUTION


def unmasked(sent, answers):
    """The sum of the x of all that have sent, (n,) of int32."""
    ### BEGIN SOLUTION
    total = torch.stack(list(sent.values())).sum(0, dtype=torch.int32)
    for u, (own, missing) in answers.items():
        total = total - mask_of(own, len(total))
        for v, seed in missing.items():
            pair = mask_of(seed, len(total))
            total = total - pair if u < v else total + pair
    return total
    ### END SOLUTION


# %% id=masked-try
# Try it here: two clients that are neighbours.
x = {0: torch.tensor([1, -2], dtype=torch.int32), 1: torch.tensor([30, 40], dtype=torch.int32)}
# sent = {u: masked(u, x[u], {1 - u: 12345}, 67 + u) for u in x}
# answers = {u: told(u, {1 - u: 12345}, 67 + u, [0, 1]) for u in x}
# unmasked(sent, answers)  # 31, 38

# %% id=check-masked check=check_masked_sum points=10
check("masked_sum", masked, told, unmasked)

# %% [markdown] id=shares-text
"""
## 2 · A secret from shares, some of them wrong

A secret is *f*(0) of a polynomial *f* of degree `threshold` − 1, modulo a prime. Holder *v* has *f*(*v* + 1). The lesson joined shares that were all right. Now some holders send another number, by mistake or on purpose, and nobody has a digest of the secret.

With *n* shares, at most (*n* − `threshold`) // 2 of them are wrong. Then the secret is still certain: no other polynomial of that degree goes through as many of the points.

`joined(shares, threshold, prime)` gets `{holder: share}` and returns `(secret, wrong)`, where `wrong` is the sorted list of the holders whose share is not the polynomial's.

**Target:** 24 of 24 sets of 2 to 9 shares, with primes from 251 to 2⁶¹ − 1, drawn anew each time. Divisions are exact, modulo the prime.

An answer that uses `dtcourse.federated` is refused.
"""

# %% id=shares solution=joined
def joined(shares, threshold, prime):
    """{holder: share}: returns the secret, and the holders whose share is wrong."""
    ### BEGIN SOLUTION
    from itertools import combinations

    def value_at(x, some):
        """Of the polynomial through these holders' points."""
        total = 0
        for v in some:
            above, below = shares[v], 1
            for w in some:
                if w != v:
                    above = above * (x - (w + 1)) % prime
                    below = below * (v - w) % prime
            total += above * pow(below, -1, prime)
        return total % prime

    allowed = (len(shares) - threshold) // 2
    for some in combinations(sorted(shares), threshold):
        wrong = [v for v in sorted(shares) if value_at(v + 1, some) != shares[v]]
        if len(wrong) <= allowed:
            return value_at(0, some), wrong
    ### END SOLUTION

# %% id=shares-try
# Try it here: f(x) = 42 + 7 x modulo 251. Holder 2 has 63, and sends 64.
# joined({0: 49, 1: 56, 2: 64, 4: 77}, 2, 251)  # (42, [2])

# %% id=check-shares check=check_joined points=10
check("joined", joined)

# %% [markdown] id=private-text
"""
## 3 · A private gradient over ranks

A batch is drawn by Poisson sampling, and its samples lie on several ranks; a rank may have none. The model is linear, *z* = *W x*, and a sample's loss is ½ |*W x* − *y*|².

`private_gradient(w, x, y, max_norm, noise_multiplier, expected)` gets `w` (*k*, *d*), the same on all ranks, and this rank's `x` (*m*, *d*) and `y` (*m*, *k*), in double precision. It returns, on every rank, the gradient that the step is taken with, (*k*, *d*): each sample's gradient by *W* is clipped to the length `max_norm`; all ranks' are added; noise is added to the sum, of deviation `noise_multiplier` · `max_norm` for each number, once; and all is divided by `expected`, the expected number of samples of all ranks together.

**Target**, on 1, 2 and 4 ranks: without noise equal to one process to 1e-9; the noise's deviation right within 5 of its own standard errors; the same gradient on all ranks, bit for bit; and other noise in each run, since whoever knows the seed takes the noise off.

An answer that uses `dtcourse.federated` is refused.
"""

# %% id=private solution=private_gradient
def private_gradient(w, x, y, max_norm, noise_multiplier, expected):
    """w (k, d), x (m, d), y (m, k) with m from 0: returns the private gradient, (k, d), the same on all ranks."""
    ### BEGIN SOLUTION
    errors = x @ w.T - y
    # the gradient of one sample is the product of its error and its input, and so is its length
    norms = errors.norm(dim=1) * x.norm(dim=1)
    scale = max_norm / norms.clamp(min=max_norm)
    total = (scale[:, None] * errors).T @ x
    if dist.get_rank() == 0:
        draw = torch.Generator()
        draw.seed()
        noise = torch.randn(w.shape, generator=draw, dtype=w.dtype)
        total = total + noise_multiplier * max_norm * noise
    dist.all_reduce(total)
    return total / expected
    ### END SOLUTION

# %% id=private-try
def on_a_rank():
    w, x, y = torch.zeros(2, 3).double(), torch.ones(4, 3).double(), torch.ones(4, 2).double()
    return private_gradient(w, x, y, 1.0, 0.0, 8.0)


# Try it here: four equal samples on each of two ranks. Their gradients have length 1 after clipping.
# from dtcourse import launch
# launch(on_a_rank, 2)[0].norm()  # 1

# %% id=check-private check=check_private_gradient points=10
check("private_gradient", private_gradient)

# %% [markdown] id=rounds-text
"""
## 4 · What did the server ask for?

You have the log of an auditor: some rounds of secure aggregation, of the same clients. It is an old program, in which lists are not signed and any threshold from 2 on is allowed. Each round is a dict:

- `"keys"`: `{client: its public key for masks}`, as text;
- `"norms"`: `{client: the length of the vector that it has masked and sent}`; who is not here has sent none. Each client is to clip its vector to `max_norm`;
- `"asked"`: `{client: (survivors, dropped)}`, the two lists that the server sent to it before `unmask`. A client answers with its share of *b* of each survivor, and of *s* of each that has dropped out;
- `"answered"`: the clients whose answer came to the server.

`diagnose_rounds(threshold, max_norm, rounds)` returns `(what, where)`:

- `("uncovered", client)`: from the answers of one round the server can read this client's own vector;
- `("reused", client)`: it has used a key for masks twice;
- `("unclipped", client)`: it has sent a vector that is too long;
- `("too few", round)`: in this round, counted from 0, the server cannot have the sum;
- `("healthy", None)`: none of these.

`threshold` shares of a secret give it back, and fewer say nothing. At most one thing is wrong. A server that sends different lists has lied; that alone uncovers nobody.

**Target:** 32 of 32 logs of 3 to 5 rounds and 6 to 10 clients, drawn anew each time, and shuffled.
"""

# %% id=rounds solution=diagnose_rounds
def diagnose_rounds(threshold, max_norm, rounds):
    """What is wrong in these rounds, and where: (what, where), or ("healthy", None)."""
    ### BEGIN SOLUTION
    keys = {}
    for number, one in enumerate(rounds):
        for client, key in one["keys"].items():
            if key in keys.setdefault(client, set()):
                return "reused", client
            keys[client].add(key)
        for client, norm in one["norms"].items():
            if norm > max_norm * (1 + 1e-9):
                return "unclipped", client
        if len(one["answered"]) < threshold:
            return "too few", number
        of_seed, of_key = {}, {}
        for client in one["answered"]:
            survivors, dropped = one["asked"][client]
            for v in survivors:
                of_seed[v] = of_seed.get(v, 0) + 1
            for v in dropped:
                of_key[v] = of_key.get(v, 0) + 1
        for v in one["norms"]:
            if min(of_seed.get(v, 0), of_key.get(v, 0)) >= threshold:
                return "uncovered", v
    return "healthy", None
    ### END SOLUTION

# %% id=rounds-try
# Try it here: one round of three clients with a threshold of 2; client 1 has sent a vector of length 3.
ROUND = {
    "keys": {0: "a0", 1: "b1", 2: "c2"},
    "norms": {0: 1.0, 1: 3.0, 2: 0.5},
    "asked": {v: ([0, 1, 2], []) for v in range(3)},
    "answered": [0, 1, 2],
}
# diagnose_rounds(2, 1.0, [ROUND])  # ("unclipped", 1)

# %% id=check-rounds check=check_diagnose_rounds points=8
check("diagnose_rounds", diagnose_rounds)

# %% [markdown] id=choose-text
"""
## 5 · How many to ask, and with which threshold?

A server asks some clients for a round of secure aggregation, and sets the threshold to a share of them, rounded up. Some of those asked never send their numbers, and some more drop out before `unmask`. A round counts where as many clients as the server wants are in the sum, and the threshold is reached in the end; else it is begun anew. Some clients, a part of those asked, work with the server: they give it their shares, and sign whatever lists it likes. You know none of these numbers.

`measure(asked, share)` runs rounds in which `asked` clients are asked, with the threshold `share` · `asked`. It returns `(seconds, uncovered)`: how long it takes, on average, until a round counts, infinity where that does not come; and how many clients the server could uncover with its helpers, by lists of its own making. At most 14 of the 44 choices may be measured. Return the choice that you would take: `(asked, share)`.

**Target:** on six federations, drawn anew each time, nobody uncovered, and at most 1.1 times the time of the best such choice.
"""

# %% id=choose solution=choose_round
def choose_round(measure, asked, shares):
    """measure(asked, share) -> (seconds, uncovered); asked, shares: those that are possible, in rising order."""
    ### BEGIN SOLUTION
    middle = len(asked) // 2
    share = next(one for one in shares if not measure(asked[middle], one)[1])
    low, high = 0, len(asked) - 1
    while low < high:
        at = (low + high) // 2
        # both infinite: too few were asked
        if measure(asked[at], share)[0] < measure(asked[at + 1], share)[0]:
            high = at
        else:
            low = at + 1
    return asked[low], share
    ### END SOLUTION

# %% id=choose-try
# Try it here: what your function measures on a first federation, and what it chooses.
# from dtcourse.course.judging import trials
# trials.practise("choose_round", choose_round)

# %% id=check-choose check=check_choose_round points=10
check("choose_round", choose_round)
