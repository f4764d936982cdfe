# %% [markdown] id=title
"""
# 28b · What a server learns, and how to bound it

In [lesson 28](../lessons/28-federated.ipynb) data stayed with the clients, and each client sent a change of the model. That is less than its data. But how much less?
**The question of this lesson: what does a server learn of one client's data, and what keeps it from that?**

**You will be able to**

- rebuild an image from the gradient that a client sends, by a division and by a search;
- say what secure aggregation hides, from whom, and in which round a client may drop out;
- clip, add noise and count epsilon, for each sample or for each client;
- name what none of it protects.

**Know first:** [lesson 28](../lessons/28-federated.ipynb) (FedAvg, clients on ranks), [lesson 02](../lessons/02-processes-and-ranks.ipynb) (ranks).

**Takes:** about 90 minutes without the exercises, an estimate. About 20 seconds to run. **Needs:** two CPU cores, and the package `cryptography` (the course's extra `federated`).
"""

# %% id=parameters tags=parameters
WORLD_SIZE = 4  # ranks, on which the clients live
DEVICE = None  # None: what this machine has; or "cpu", "cuda"
BACKEND = None  # None: NCCL where every rank has its own GPU, else gloo
CLUSTER = None  # None: this machine; or "slurm": launches that are not emulated run as jobs of that cluster
CLIENTS = 8  # of the attack and of the secure sum, 7 or more
ROUNDS = 10  # of private training

# %% id=imports
import math
import random
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import data, device, launch, plots
from dtcourse.course import expect_error, show
from dtcourse.federated.vectors import ModelVector
from dtcourse.launch import use_cluster
from dtcourse.models import MLP

use_cluster(CLUSTER)
torch.set_num_threads(1)  # for small tensors the faster way
WHERE = {"device": DEVICE, "backend": BACKEND}
# The protocol's messages are Python objects and whole numbers: they need no GPU.
HOST = {"device": "cpu", "backend": "gloo"}
P, CLIENTS = max(1, WORLD_SIZE), max(7, CLIENTS)

# %% id=model
TRAIN, TEST = data.digits("train", flat=True), data.digits("test", flat=True)
X, Y = TRAIN.images.double(), TRAIN.labels


def build(*hidden):
    """Linear layers on 64 pixels; without a hidden layer a linear classifier."""
    return MLP((64, *hidden, 10)).double()


def gradient_of(model, x, y):
    """(N,): what a client sends that takes one step on the mean loss of its images, but for the learning rate."""
    return ModelVector(model).gradient(F.cross_entropy(model(x), y))

# %% id=question hidden
SECRET = 3


def as_square(x):
    """(49, 50): a vector of 2,410 numbers as a picture; the last places stay empty."""
    return F.pad(x / x.abs().max(), (0, 2450 - len(x)), value=math.nan).view(49, 50)


sent = gradient_of(build(32), X[SECRET : SECRET + 1], Y[SECRET : SECRET + 1])
plots.heatmap(
    as_square(sent), diverging=True, annotate=False,
    xlabel="place in the vector, modulo 50", ylabel="place divided by 50", unit="of the largest",
    title=f"A client has sent these {len(sent):,} numbers. Which digit had it?",
)  # fmt: skip

# %% [markdown] id=division-predict
"""
The model has 64 inputs, 32 hidden units with ReLU, and 10 outputs. The client took one step, on one image. Its image never left it.

## 1 · One division

A linear layer computes *z* = *W x* + *b*. Let δ be the loss's gradient by *z*. Then the gradient by *b* is δ, and the gradient by row *i* of *W* is δᵢ *x*.

**Predict.** (a) The server knows the model and has these gradients. Can it find *x*, and how exactly? (b) Can it find the label? The gradient by the last layer's bias is softmax − one-hot. (c) FedAvg's client sends its change after ten steps, not a gradient. Does that help it? (d) A client has eight images and sends the mean gradient. How many of them can be found by the same division: none, some, all?

<details><summary>Answer</summary>
(a) Yes, exactly: divide a row of the weight's gradient by the bias's number of that row. Every row with δᵢ ≠ 0 gives the same x. (b) Yes: one number of the last bias's gradient is below 0, and its place is the label. (c) No, with one image: each step adds another δᵢ to a row, and the same x stands beside it. (d) Some: a row is a mixture of those images for which its unit is active. Where it is active for one image alone, the row gives that image.
</details>
"""

# %% id=division topics=28b.gradient-inversion
def my_division(weight, bias):
    """(rows, 64): each row of a linear layer's gradient over its bias's number. Rows of silent units are left out."""
    used = bias.abs() > 1e-12
    return weight[used] / bias[used, None]


weight, bias, _, last_bias = ModelVector(build(32)).parts(sent)
rows = my_division(weight, bias)
print(f"{len(rows)} of {len(bias)} rows give an image; pixels 16 to 23, in grey levels of 16:")
print("the client's image ", (16 * X[SECRET, 16:24]).round().int().tolist())
print("the first row gives", (16 * rows[0, 16:24]).round().int().tolist())
print("the last row gives ", (16 * rows[-1, 16:24]).round().int().tolist())
below = (last_bias < 0).nonzero().flatten().tolist()
print(f"label {int(Y[SECRET])}; the last bias's gradient is below 0 at {below}")

# %% id=heard topics=28b.gradient-inversion
from dtcourse.federated import Clients, ClientWork, FedAvg


class Listening(FedAvg):
    """FedAvg whose server writes down what each client sends."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.heard = {}

    def sent(self, change, client):
        self.heard[client] = change.cpu()
        return super().sent(change, client)


def one_round(steps):
    """On a rank: what the server hears from the clients that live here. Each client has one image."""
    where = device.current()
    clients = Clients(X.to(where), Y.to(where), [torch.tensor([k]) for k in range(CLIENTS)])
    federated = Listening(build(32).to(where), clients, ClientWork(F.cross_entropy, 0.1, steps))
    federated.round()
    return federated.heard

# %% id=heard-run topics=28b.gradient-inversion
def found_in(rows, images, within=1e-3):
    """How many of the images some row is equal to, each pixel to a thousandth."""
    off = torch.cdist(rows, images, p=math.inf)
    return int((off < within).any(0).sum())


run = launch(one_round, P, 10, **WHERE)
HEARD = dict(sorted((client, change) for heard in run for client, change in heard.items()))
VECTOR = ModelVector(build(32))
found = 0
for client, change in HEARD.items():
    weight, bias, *_ = VECTOR.parts(change)
    found += found_in(my_division(weight, bias), X[client : client + 1])
print(f"{len(HEARD)} clients, ten steps each: the server has {found} of {len(HEARD)} images")

# %% id=batches topics=28b.gradient-inversion
def found_of(size, hidden, draws=5):
    """The share of a client's images that the division gives back, mean of some clients."""
    model, total = build(hidden), 0
    for number in range(draws):
        mine = slice(number * size, (number + 1) * size)
        weight, bias, *_ = ModelVector(model).parts(gradient_of(model, X[mine], Y[mine]))
        total += found_in(my_division(weight, bias), X[mine])
    return total / (size * draws)


SIZES, WIDTHS = (1, 2, 4, 8, 16, 32, 64), (32, 256, 1024)
SHARES = {hidden: [found_of(size, hidden) for size in SIZES] for hidden in WIDTHS}
rows = [(size, *(SHARES[hidden][i] for hidden in WIDTHS)) for i, size in enumerate(SIZES)]
columns = ["images of the client", *(f"found, {hidden} hidden units" for hidden in WIDTHS)]
plots.table(rows, columns=columns, formats=dict.fromkeys(columns[1:], "{:.0%}"))

# %% id=batches-picture hidden
plots.curves(
    {f"{hidden} hidden units": (SIZES, shares) for hidden, shares in SHARES.items()},
    xlabel="images in the client's batch", ylabel="share of them that is found",
    log_x=True, x_unit="count", y_unit="percent",
    title="What one division gives back of a batch, by the layer's width",
)  # fmt: skip

# %% [markdown] id=division-answer
"""
Answer: (a) exactly: «n» of 32 rows give the same image. (b) Yes. (c) No: «8» of 8 images are found after ten steps. (d) With 32 hidden units «n %» of eight images are found, with 1,024 units «n %». Of 64 images it is «n %» and «n %».

So a batch is a weak protection, and the wider the first layer the weaker «(check the table)». Fowl et al. (2110.13057) go further: a server that *changes* the model can set the weights so that each row catches one image of a large batch. Ours only reads.

**What this adds to the question:** the server learns all of a client with one image, whatever the number of its steps, and a part of a client with some.

## 2 · A search

Not every model begins with a linear layer that has a bias. Zhu et al. (2019, "deep leakage from gradients") need neither. They look for images whose gradient is the one that was sent: start anywhere, compute the gradient of the guess, and step so that the two gradients come nearer. That takes a derivative of a derivative, which autograd has. Geiping et al. (2020) compare the directions of the two gradients by their cosine, and not their lengths. (They also prefer smooth images, and step by the signs of Adam's gradient. Both searches below step with L-BFGS, as Zhu et al. do.)

**Predict.** The model below is a convolution, a sigmoid and a linear layer, all without a bias. The server knows the model and the label (it can often read it, as in section 1). (a) 2,596 numbers were sent, and 64 pixels are wanted. Does the search find one image? (b) If the client sends a tenth of its gradient, which of the two distances still finds it?

<details><summary>Answer</summary>
(a) It can: the gradient depends on the pixels smoothly, and has many more numbers. It is not sure to, since the distance may have other minima. (b) The cosine: it does not know lengths. The other one has to be told the factor, or to look for it, too.
</details>
"""

# %% id=inversion topics=28b.gradient-inversion
def my_inversion(model, sent, labels, distance, steps=120):
    """(B, 64): images whose gradient is near the one that was sent."""
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(len(labels), 64, generator=draw, dtype=torch.double).requires_grad_()
    search = torch.optim.LBFGS(
        [x], max_iter=steps, history_size=50, tolerance_grad=1e-12, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        loss = F.cross_entropy(model(x), labels)
        own = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        off = distance(torch.cat([g.flatten() for g in own]), sent)
        (x.grad,) = torch.autograd.grad(off, x)
        return off.detach()

    search.step(closure)
    return x.detach().clamp(0, 1)  # what a pixel may be


def squared(own, sent):
    """Zhu et al.: how far the gradients are apart."""
    return (own - sent).square().sum() / sent.square().sum()


def cosine(own, sent):
    """Geiping et al.: the angle between them."""
    return 1 - F.cosine_similarity(own, sent, dim=0)

# %% id=inversion-run topics=28b.gradient-inversion
torch.manual_seed(0)
CONV = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Sigmoid(),
    nn.Flatten(), nn.Linear(256, 10, bias=False),
).double()  # fmt: skip


def pixels_off(guess, x):
    """How far a pixel is off, root mean square."""
    return (guess - x).square().mean().sqrt().item()


x, y = X[SECRET : SECRET + 1], Y[SECRET : SECRET + 1]
sent, guesses = gradient_of(CONV, x, y), {}
print(f"{len(sent):,} numbers; who guesses the mean of all digits is off by", end=" ")
print(f"{pixels_off(X.mean(0), x):.2f}")
for name, distance in {"squared": squared, "cosine": cosine}.items():
    for part in (1.0, 0.1):
        guess = my_inversion(CONV, part * sent, y, distance)
        guesses[f"{name}, {part:g}"] = guess[0]
        print(f"{name:8s} {part:3g} of the gradient: a pixel is off by {pixels_off(guess, x):.2f}")

# %% id=inversion-picture hidden
plots.images(
    torch.stack([x[0], *guesses.values()]).view(-1, 8, 8), ["the image", *guesses],
    columns=5, title="An image, and what two searches make of its gradient and of a tenth of it",
)  # fmt: skip

# %% [markdown] id=inversion-answer
"""
Answer: (a) a pixel is off by «n» with Zhu's distance and by «n» with the cosine, where a pixel is between 0 and 1. (b) From a tenth of the gradient it is «n» and «n».

These are eight by eight pixels, one image, and a small model that has not been trained. With more pixels, larger batches and several local steps the search ends in wrong images more often. It does not become safe: Yin et al. (2104.07586) recover single images from the mean gradient of 8 to 48 images of ImageNet's size. That an attack fails is no proof, since the next one may not.

**What this adds to the question:** no layer has to be linear. What was sent depends on the data, and whoever can compute the same function can search for it. So either the server must not see one client's change (sections 3 and 4), or what it sees must depend little on one sample (sections 5 and 6).

## 3 · Masks that cancel

FedAvg needs a sum only. So each pair of clients agrees on a mask, a vector of random numbers. One of the two adds it, and the other subtracts it. In the sum all masks are gone.

Numbers are whole multiples of 2⁻ᶠ, modulo 2³². A float plus a large mask would lose its digits; whole numbers modulo 2³² lose nothing, and a mask that is uniform there makes a uniform number of every number.

**Predict.** Four clients. (a) What is the sum of the masked vectors? (b) Client 2 has agreed on masks, and never sends. What is the sum of the other three? (c) Then the others tell the server client 2's masks, and the sum is repaired. Now client 2's vector arrives late. What does the server know?

<details><summary>Answer</summary>
(a) The sum of the vectors, exactly but for the rounding. (b) Random numbers: three masks have nobody who takes them off. (c) All of client 2's vector: it has all of its masks.
</details>
"""

# %% id=masks topics=28b.secure-aggregation
from dtcourse.federated import FixedPoint


def my_mask(n, *words):
    """(n,) of int32: the same for whoever knows the words."""
    draw = torch.Generator().manual_seed(int.from_bytes(repr(words).encode(), "big") % (2**61 - 1))
    return torch.randint(-(2**31), 2**31, (n,), generator=draw).int()


def my_masked(u, x, clients, number=0):
    """x and a mask for each pair: + towards clients of a higher number, - towards the others. int32 wraps around."""
    y = x.clone()
    for v in clients:
        if v != u:
            pair = my_mask(len(x), "pair", min(u, v), max(u, v), number)
            y = y + pair if v > u else y - pair
    return y

# %% id=masks-run topics=28b.secure-aggregation
CODE, FOUR = FixedPoint(fraction_bits=8), range(4)


def decoded(vectors):
    """The sum of whole numbers, as fractions again."""
    return CODE.decode(torch.stack(list(vectors)).sum(0, dtype=torch.int32)).tolist()


NUMBERS = {u: torch.tensor([u + 0.25, -u, 0.5]) for u in FOUR}
coded = {u: CODE.encode(x, num_clients=4) for u, x in NUMBERS.items()}
masked = {u: my_masked(u, x, FOUR) for u, x in coded.items()}
for u in FOUR:
    print(f"client {u}: {coded[u].tolist()} of 2^-8; sent {masked[u].tolist()}")
print("the sum of all four:", decoded(masked.values()))
print("without client 2:   ", decoded(y for u, y in masked.items() if u != 2))

# %% id=late topics=28b.secure-aggregation
def without_pairs(u, y, clients):
    """y, and all pairs' masks of client u taken off."""
    return y - my_masked(u, torch.zeros_like(y), clients)


pairs_of_2 = my_masked(2, torch.zeros(3, dtype=torch.int32), FOUR)
print("repaired, without 2:   ", decoded([*(masked[u] for u in (0, 1, 3)), pairs_of_2]))
print("2's vector comes late: ", decoded([without_pairs(2, masked[2], FOUR)]))
second = masked[2] + my_mask(3, "only client 2 knows this")
print("with a mask of its own:", decoded([without_pairs(2, second, FOUR)]))

# %% [markdown] id=shamir-predict
"""
Answer: (a) the sum. (b) Noise. (c) All of client 2's vector. So each client adds a second mask, of a seed *b* of its own. For a client that stays to the end the server needs *b*; for one that has dropped out it needs the key *s* of its pairs' masks. With one of them alone it reads nothing. **It must not get both of one client.**

But a client that has dropped out cannot tell its key any more. So at the beginning each client gives *shares* of *b* and of *s* to all others: any *t* of them give the secret back, and *t* − 1 say nothing (Shamir, 1979). A secret is *f*(0) of a polynomial *f* of degree *t* − 1, whose other coefficients are drawn at random, modulo a prime. Client *v* holds *f*(*v* + 1).

**Predict.** Modulo 251, *t* = 3. Somebody has two shares. How many of the 251 secrets are still possible, and is one of them likelier?

<details><summary>Answer</summary>
All 251, each as likely as another: through two points and any value at 0 there is exactly one parabola.
</details>
"""

# %% id=shamir topics=28b.secure-aggregation
PRIME = 251


def my_split(secret, threshold, holders):
    """holder -> share: a polynomial's value at holder + 1."""
    draw = random.Random(0)
    coefficients = [secret, *(draw.randrange(PRIME) for _ in range(threshold - 1))]
    return {v: sum(c * (v + 1) ** k for k, c in enumerate(coefficients)) % PRIME for v in holders}


def my_join(shares):
    """The value at 0 of the polynomial through these points: Lagrange's formula."""
    total = 0
    for v, share in shares.items():
        for w in shares:
            if w != v:
                share = share * (w + 1) * pow(w - v, -1, PRIME) % PRIME
        total += share
    return total % PRIME


shares = my_split(42, 3, range(5))
print("shares", shares)
for some in ((0, 1, 2), (0, 3, 4)):
    print(f"from clients {some}:", my_join({v: shares[v] for v in some}))
possible = {my_join({0: shares[0], 1: shares[1], 2: third}) for third in range(PRIME)}
print(f"from clients 0 and 1: {len(possible)} secrets are possible")

# %% [markdown] id=shamir-answer
"""
Answer: 251. The package's prime is 2⁵²¹ − 1, and its secrets are keys of 256 bits.

**What this adds to the question:** two masks and two kinds of shares hide one client's change, whoever drops out.

## 4 · Secure aggregation, whole

Bonawitz et al. (2017) put this together in rounds. Four are enough against a server that is curious and keeps to the protocol; the fourth of these five, `consistency`, is for one that lies.

|round|a client sends|the server sends|
|:--|:--|:--|
|`advertise`|three public keys: to seal messages, to agree on masks, to sign lists|all public keys|
|`share`|for each other client a share of *b* and of *s*, sealed|to each client those that are for it|
|`masked`|its numbers, with all masks|two lists: who has sent numbers, and who has not|
|`consistency`|its signature of these lists|all signatures|
|`unmask`|a share of *b* of each that has sent numbers, of *s* of each that has not|the sum is known|

Shares pass through the server, and it cannot read them: two clients have a key in common, by key agreement (X25519), and messages are sealed with it (AES-GCM). Masks are AES's stream from the agreed key. Lists are signed with Ed25519. The package takes all of these from `cryptography`; nobody should write them anew.
"""

# %% id=show-masked topics=28b.secure-aggregation
from dtcourse.federated import SecureClient, SecureFedAvg, SecureServer, Stopped, secure_sum

show(SecureClient.masked)

# %% [markdown] id=dropouts-predict
"""
**Predict.** Eight clients with a threshold of 5; the vectors are the changes that the server heard in section 1. A client drops out before each of the five rounds in turn. (a) In which cases is its vector in the sum? (b) What happens where four clients drop out before `masked`? (c) A client's bytes in the five rounds: which round has most, with 2,410 numbers? (d) `SecureFedAvg` is FedAvg through this sum: each client sends *n*ₖ times its change, and *n*ₖ, both masked, as multiples of 2⁻³². By how much does the model differ from FedAvg's after a round?

<details><summary>Answer</summary>
(a) Only where it drops out before `consistency` or `unmask`: then the server has its numbers, and the others have shares of its b. (b) Four are left, fewer than the threshold: the round stops, and nobody learns anything. (c) `masked`: 4 bytes for each number. Shares grow with the square of the clients, over all of them. (d) By rounding alone: each change is off by half of 2⁻³² at most, and so is their mean.
</details>
"""

# %% id=dropouts topics=28b.secure-aggregation
THRESHOLD, ENCODING = CLIENTS // 2 + 1, FixedPoint(fraction_bits=24)
NAMES = ("advertise", "share", "masked", "consistency", "unmask")
DROPOUTS = {f"3 before {name}": {3: name} for name in NAMES}
DROPOUTS |= {"nobody": {}, "three clients": {1: "advertise", 3: "masked", 6: "unmask"}}


def aggregated(dropouts):
    """On a rank: the sum of all clients' changes, of which those that live here are given."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {k: change for k, change in HEARD.items() if k % size == rank}
    return secure_sum(mine, THRESHOLD, len(HEARD), ENCODING, dropouts=dropouts)


def all_aggregated():
    """On a rank: the sum for each case, and what is said where too few are left."""
    found = {name: aggregated(dropouts) for name, dropouts in DROPOUTS.items()}
    try:
        aggregated(dict.fromkeys(range(len(HEARD) - THRESHOLD + 1), "masked"))
    except Stopped as stopped:
        return found, str(stopped)

# %% id=dropouts-run topics=28b.secure-aggregation
SUMS, stopped = launch(all_aggregated, P, **HOST)[0]
rows = []
for name, found in SUMS.items():
    scaled = [(HEARD[k] * 2**24).round() for k in found.survivors]
    off = (found.total * 2**24 - sum(scaled)).abs().max().item()
    rows.append((name, str(found.survivors), off, *(found.nbytes[one] for one in NAMES)))
print(stopped.split(". The model")[0])
columns = ["drops out", "in the sum", "off by, of 2^-24", *NAMES]
formats = {columns[2]: "{:g}"} | dict.fromkeys(NAMES, "{:,}")
plots.table(rows, columns=columns, formats=formats, caption="bytes of all clients, by round")

# %% id=secured topics=28b.secure-aggregation
ONE_EACH = Clients(X, Y, [torch.tensor([k]) for k in range(CLIENTS)])
WORK = ClientWork(F.cross_entropy, 0.1, 10)
plain = FedAvg(build(32), ONE_EACH, WORK)
secured = SecureFedAvg(build(32), ONE_EACH, WORK, threshold=THRESHOLD)
for federated in (plain, secured):
    federated.round()
off = (plain.x - secured.x).abs().max().item()
print("FedAvg and SecureFedAvg differ by", "less than 1e-8" if off < 1e-8 else f"{off:.1e}")
secured.dropouts[3] = "masked"
report = secured.round()
print(f"next round: {report.trained} trained;", *report.skipped.values())

# %% [markdown] id=view-predict
"""
Answer: (a) only before the last two. Each sum is exact: it is that of the rounded numbers, to the last bit. (b) The round stops, with a sentence. (c) `masked`: «n» of «n» bytes of all clients. A client sends 96, then 32 + 160 (*n* − 1), then 4 *N* + 32, then 64, then 66 bytes for each client that has sent shares. (d) By less than 10⁻⁸; and a client that drops out is left out of the round, with a sentence.

Everything that the server received is kept in `view`. Now the server is curious: it does all that it should, and looks at what it has.

**Predict.** (a) It divides, as in section 1, on what client 3 has sent. What comes out? (b) It divides on the *sum* of all clients, each of which has one image. What may come out? (c) It counts the shares of client 3's two secrets that clients have sent it. How many of each kind are there where client 3 stays, and where it drops out before `masked`?

<details><summary>Answer</summary>
(a) Noise. (b) The sum of eight changes is that of a batch of eight images, and section 1 has found some of those. Secure aggregation hides whose they are, and makes the batch larger. It promises that the server learns the sum alone, and says nothing of what the sum tells. (c) Where it stays, eight of b and none of s. Where it drops out, none of b and seven of s: those who have answered are seven.
</details>
"""

# %% id=view reason="masks come from the system's secure generator: other ones each time" topics=28b.secure-aggregation
view = SUMS["nobody"].view
y = view.masked[3]
print("of client 3 it has:", ", ".join(name for name, held in vars(view).items() if 3 in held))
print("without masks:", ENCODING.encode(HEARD[3], len(HEARD))[:4].tolist(), "...")
print("received:     ", y[:4].tolist(), "...")
scaled = y.double() / 2**31
print(f"mean {scaled.mean():+.3f}, deviation {scaled.std():.3f}, where 2^31 counts as 1")
both = torch.stack([scaled, HEARD[3]])
print(f"correlation with what is hidden: {torch.corrcoef(both)[0, 1]:+.3f}")

# %% id=view-picture hidden reason="masks come from the system's secure generator: other ones each time"
plots.heatmap(
    torch.cat([as_square(HEARD[3]), as_square(scaled)], dim=1),
    diverging=True, annotate=False, unit="of the largest", xlabel="place in the vector, modulo 50",
    title="Left: client 3's change. Right: what the server received of it",
)  # fmt: skip

# %% id=sum-attack topics=28b.secure-aggregation,28b.gradient-inversion
def divided(vector, images):
    """How many of these images the division finds in a vector."""
    weight, bias, *_ = VECTOR.parts(vector)
    return found_in(my_division(weight, bias), images)


def shares_of(view, client):
    """How many shares of its b, and of its s, the server has received."""
    of_seed = sum(client in s.of_seed for s in view.shares.values())
    return of_seed, sum(client in s.of_key for s in view.shares.values())


few = secure_sum({k: HEARD[k] for k in (0, 1)}, 2, 2, ENCODING)
print("from client 3's masked vector:", divided(ENCODING.decode(view.masked[3]), X[:CLIENTS]))
print(f"from the sum of {CLIENTS} clients:", divided(SUMS["nobody"].total, X[:CLIENTS]), "images")
print("from the sum of 2 clients:", divided(few.total, X[:2]), "images")
for name in ("nobody", "3 before masked"):
    print(f"drops out: {name}; shares of client 3's b and s:", *shares_of(SUMS[name].view, 3))

# %% [markdown] id=search-predict
"""
Answer: (a) noise: «0» images. In uniform numbers between −1 and 1 the deviation would be 0.577. (b) «n» of 8 images come out of the sum, and «n» of 2 from two clients. (c) «8 and 0», «0 and 7»: with a threshold of 5 one of the two secrets is known each time.

**Predict.** Four clients have the model of section 2, one image each, and digits that the server knows. It searches (a) in what one of them has sent, (b) in the sum. What does it find?

<details><summary>Answer</summary>
(a) Some grey picture: a masked vector has no direction that an image's gradient could have. (b) It may find four images: their labels differ, so each has rows of its own in the last layer. 256 pixels are wanted, and 2,596 numbers are there.
</details>
"""

# %% id=sum-search topics=28b.secure-aggregation,28b.gradient-inversion
WHO = [int((TRAIN.labels == digit).nonzero()[0]) for digit in (7, 2, 9, 4)]
vectors = {k: gradient_of(CONV, X[[who]], Y[[who]]) for k, who in enumerate(WHO)}
four = secure_sum(vectors, 3, 4, ENCODING)
guess = my_inversion(CONV, four.total / 4, Y[WHO], squared, steps=240)
for digit, one, who in zip(Y[WHO].tolist(), guess, WHO, strict=True):
    print(f"from the sum, the {digit}: a pixel is off by {pixels_off(one, X[who]):.2f}")

# %% id=masked-search reason="masks come from the system's secure generator: other ones each time" topics=28b.secure-aggregation,28b.gradient-inversion
alone = my_inversion(CONV, ENCODING.decode(four.view.masked[0]), Y[WHO[:1]], cosine)
print(f"from what client 0 sent: a pixel is off by {pixels_off(alone[0], X[WHO[0]]):.2f}")
plots.images(
    torch.cat([X[WHO], guess, alone]).view(-1, 8, 8),
    [*(f"the {digit}" for digit in Y[WHO].tolist()), *["from the sum"] * 4, "from client 0"],
    columns=4, title="Four clients' images, and what is found in the sum and in a masked vector",
)  # fmt: skip

# %% [markdown] id=curious-predict
"""
Answer: (a) nothing: a pixel is off by «about n». (b) By «n», «n», «n» and «n». **Secure aggregation does not protect what the sum tells.** With few clients, or where all but one work with the server, the sum is nearly one client's vector.

Now the server lies. It asks for more than it should.

**Predict.** (a) It says that client 1 has sent its numbers *and* has dropped out. Suppose that clients answer whatever they are asked. Which secrets does the server have then, and what can it read? (b) What do clients that look at the lists answer? (c) There are seven clients. It tells clients 0 to 2 that client 6 has dropped out, and the others that it has not. Each of them sees lists that agree. With a threshold of 3, does it get both secrets of client 6? And with a threshold of 4?

<details><summary>Answer</summary>
(a) Both of client 1, so it takes off all of its masks, and divides as in section 1. (b) Each refuses: both shares of one client would uncover it. (c) With 3: yes. Three clients give shares of its key s, and four give shares of its seed b. With 4 there are no two groups of four among seven: one of the two secrets stays hidden. So the threshold is above half of the clients.
</details>
"""

# %% id=uncover topics=28b.secure-aggregation
from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.keys import KeyPair, mask


def my_uncovered(view, victim, threshold):
    """(N,): the victim's own vector, made of nothing but what the server has received."""
    of_seed = {v: s.of_seed[victim] for v, s in view.shares.items() if victim in s.of_seed}
    of_key = {v: s.of_key[victim] for v, s in view.shares.items() if victim in s.of_key}
    seed, _ = shamir.join(of_seed, threshold)
    key, _ = shamir.join(of_key, threshold)
    y, pair = view.masked[victim], KeyPair.of(key)
    y = y - mask(seed, len(y), y.dtype)
    for v in view.sealed:
        if v != victim:
            both = mask(pair.agree(view.keys[v].mask, b"mask"), len(y), y.dtype)
            y = y - both if v > victim else y + both
    return y

# %% id=both-shares topics=28b.secure-aggregation,28b.gradient-inversion
from dtcourse.federated.secure.messages import Shares, Signature


class BothShares(SecureServer):
    """Says that client 1 has sent its numbers and has dropped out."""

    def ask(self, came):
        return {u: (survivors, [1]) for u, (survivors, _) in super().ask(came).items()}


class Trusting(SecureClient):
    """Answers what it is asked, whatever the lists say."""

    def consistency(self, survivors, dropped):
        self.asked = survivors, dropped
        return Signature(bytes(64))

    def unmask(self, signatures):
        survivors, dropped = self.asked
        of_seed = {v: self._shares_of(v)[1] for v in survivors}
        return Shares(of_seed, {v: self._shares_of(v)[0] for v in dropped})

# %% id=both-shares-run topics=28b.secure-aggregation,28b.gradient-inversion
three = {k: HEARD[k] for k in (0, 1, 2)}
found = secure_sum(three, 2, 3, ENCODING, make_server=BothShares, make_client=Trusting)
print("shares of client 1's b and s:", *shares_of(found.view, 1))
own = ENCODING.decode(my_uncovered(found.view, 1, 2))
off = (own - HEARD[1]).abs().max().item() * 2**24
print(f"its vector, off by {off:.1f} of 2^-24 at most; images found: {divided(own, X[1:2])}")
print("clients that look at the lists:")
with expect_error(Stopped, match="both shares"):
    secure_sum(three, 2, 3, ENCODING, make_server=BothShares)

# %% id=two-groups topics=28b.secure-aggregation
def possible_secrets(shares, threshold):
    """The secrets that fit these shares, of which one is missing at most."""
    if len(shares) >= threshold:
        return {my_join(shares)}
    return {my_join({**shares, 100: another}) for another in range(PRIME)}


for threshold in (3, 4):
    of_key, of_seed = my_split(42, threshold, range(7)), my_split(99, threshold, range(7))
    keys = possible_secrets({v: of_key[v] for v in (0, 1, 2)}, threshold)
    seeds = possible_secrets({v: of_seed[v] for v in (3, 4, 5, 6)}, threshold)
    print(f"threshold {threshold}: possible keys of client 6: {len(keys)}, seeds: {len(seeds)}")

# %% [markdown] id=lists-predict
"""
Answer: (a) «3 and 3» shares: both secrets, the vector to its rounding, and «1» image. (b) All refuse, and the round stops. (c) With a threshold of 3 one key and one seed are possible: the server has both. With 4 all 251 keys are. The package's clients refuse a threshold of half or less.

That is not all. With seven clients and a threshold of 4 a server that sends *each* client other lists can still get the sum of two clients alone, and each of the two knows the other's vector (`tests/federated/test_lying_server.py` does it). So clients sign the lists that they were sent, and answer only where *t* have signed the same ones.

**Predict.** Threshold 4, and again clients 0 to 2 hear that client 6 is gone. Who answers, and what does the server have in the end?

<details><summary>Answer</summary>
Clients 0 to 2 find three signatures of their lists, and refuse. The other four find four of theirs, and answer. So the server has the sum of all seven, which it would have had without a lie.
</details>
"""

# %% id=two-lists topics=28b.secure-aggregation
class TwoLists(SecureServer):
    """Tells clients 0 to 2 that client 6 has dropped out, and the others that it has not."""

    def ask(self, came):
        everyone = sorted(super().ask(came))
        others = [u for u in everyone if u != 6]
        return {u: (others, [6]) if u < 3 else (everyone, []) for u in everyone}


seven = {k: HEARD[k] for k in range(7)}
with expect_error(Stopped, match="threshold of 3"):
    secure_sum(seven, 3, 7, ENCODING)
found = secure_sum(seven, 4, 7, ENCODING, make_server=TwoLists)
print(found.lost[0])
print("answers came from", sorted(found.view.shares), "; the sum is of", found.survivors)
print("shares of client 6's b and s:", *shares_of(found.view, 6))

# %% [markdown] id=clip-predict
"""
Answer: clients 0 to 2 refuse, the others answer, and the sum is of all seven.

**What is not protected here.** A client of this package refuses what we could think of that a lying server asks for. Five things remain, and the first needs the paper's variant with *active security*:

- *Invented clients.* Nobody vouches for keys here. A server may invent clients, whose shares and signatures it makes itself, or put its own keys in another client's place; then all but one in a round may be its own. In the paper a third party that clients trust signs each client's key.
- *Clients that help the server.* They give it the shares that they hold. Against up to a third of them the threshold is to be above two thirds.
- *Other models for others.* A server that sends one client the model, and all others one that teaches nothing, has that client's change as the sum (Pasquini et al., 2022). Clients would have to compare the models that they were sent.
- *A wrong sum.* A server may give out any vector as the sum, and a client may send any vector: nobody can look at it.
- *The sum itself.* It is not private. That is next.

**What this adds to the question:** the server learns the sum of at least *t* clients, and no client's own vector, as long as the clients are who they say.

## 5 · Noise, and what it bounds

Differential privacy asks: could somebody tell from the result whether one sample was among the data? Let a sample's gradient be clipped to a length of at most *C*. Then leaving it out changes the sum by *C* at most. Noise of deviation *zC* is added to each number of the sum; *z* is the noise multiplier. So what the result is like with the sample and without it differs little.

The promise is two numbers: (ε, δ). Whatever event an attacker waits for, its probability with the sample is at most *e*^ε times the one without it, plus δ.

**Predict.** An attacker knows all other samples, and sees one noisy sum. It accuses at most 1 % of those whose sample was *not* there. How many of those whose sample was there does it catch, at best: with *z* = 4, with *z* = 1, and with *z* = 0.5?

<details><summary>Answer</summary>
The two sums are normal distributions, at most C apart, of deviation zC. So at best Φ(Φ⁻¹(0.01) + 1/z): 1.9 %, 9.2 % and 37 %. Epsilon's bound, e^ε · 1 % + δ, is not below that; it holds for every event, and here it is not tight.
</details>
"""

# %% id=my-clip topics=28b.differential-privacy
from dtcourse.federated import clipped, per_sample_gradients


def my_private_sum(model, x, y, max_norm, noise_multiplier, draw):
    """(N,): the sum of the samples' gradients, each of length max_norm at most, and noise."""
    total = torch.zeros(ModelVector(model).n, dtype=torch.double)
    for i in range(len(x)):
        one = gradient_of(model, x[i : i + 1], y[i : i + 1])
        total += one * min(1.0, max_norm / one.norm().item())
    noise = torch.randn(len(total), generator=draw, dtype=torch.double)
    return total + noise_multiplier * max_norm * noise


LINEAR, x, y = build(), X[:64], Y[:64]
each = per_sample_gradients(ModelVector(LINEAR), F.cross_entropy, x, y)
lengths = each.norm(dim=1)
print(f"{tuple(each.shape)}: lengths from {lengths.min():.2f} to {lengths.max():.2f}")
mine = my_private_sum(LINEAR, x, y, 1.0, 0.0, torch.Generator())
short = clipped(each, 1.0)
print(f"sum, clipped to 1: {mine.norm():.6f} long; the course's {short.sum(0).norm():.6f}")
print(f"one sample less changes it by {short.norm(dim=1).max():.6f} at most")

# %% id=guess topics=28b.differential-privacy
from dtcourse.federated import Accountant

NORMAL, DELTA = statistics.NormalDist(), 1e-3
rows = []
for z in (4.0, 2.0, 1.0, 0.5, 0.1):
    accountant = Accountant()
    accountant.spend(rate=1.0, noise_multiplier=z)
    epsilon = accountant.epsilon(DELTA)
    caught = NORMAL.cdf(NORMAL.inv_cdf(0.01) + 1 / z)
    rows.append((z, epsilon, caught, min(1.0, math.exp(epsilon) * 0.01 + DELTA)))
columns = ["z", f"epsilon, delta = {DELTA:g}", "caught at best, 1% false alarms", "epsilon's bound"]
formats = dict(zip(columns, ("{:g}", "{:.2f}", "{:.1%}", "{:.1%}"), strict=True))
plots.table(rows, columns=columns, formats=formats)

# %% [markdown] id=account-predict
"""
Answer: 1.9 %, 9.2 % and 37 %, and epsilon's bound lies above each «(check)».

**Many steps.** Training takes many noisy sums, and each tells something. The accountant adds up Rényi divergences. For one sum without sampling, the divergence of order *a* is *a* / (2 *z*²); those of the same order add up over the steps; and at the end the order is chosen that gives the smallest epsilon.

**Sampling.** If each sample takes part in a step only with probability *q*, and nobody knows whether it did, a step tells less.

**Predict.** (a) *z* = 10, all samples in each step. From 1 step to 100: does epsilon grow 100 times, 10 to 20 times, or not at all? (b) *z* = 2 and 1,000 steps: epsilon with *q* = 1, 0.1 and 0.01. Does a tenth of the rate give a tenth of epsilon, or even less? (c) Each step takes 64 samples of an epoch that is shuffled anew. Does the accountant's number hold?

<details><summary>Answer</summary>
(a) 10 to 20 times: divergences add up, and where they are small epsilon grows with their square root. (b) Less: a step's divergence falls about with q², so to a hundredth. (c) No. The formula is for Poisson sampling, each sample on its own. In a shuffled epoch each sample comes exactly once, and that is another formula. Many programs shuffle and report the Poisson figure nevertheless (Chua et al., 2403.17673, on how far it can be off).
</details>
"""

# %% id=accountant topics=28b.differential-privacy
from dtcourse.federated.accountant import ORDERS


def my_epsilon(z, steps, delta):
    """After so many sums of all samples: divergences add up, and the best order is taken."""
    return min(
        steps * a / (2 * z * z) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in ORDERS
    )


def epsilon_of(rate, z, steps):
    """The course's, at DELTA."""
    return Accountant().epsilon_after(rate, z, steps, DELTA)


for steps in (1, 10, 100, 1000):
    mine, ours = my_epsilon(10, steps, DELTA), epsilon_of(1.0, 10.0, steps)
    print(f"z = 10, {steps:4d} steps: mine {mine:7.3f}, the course's {ours:7.3f}")
for rate in (1.0, 0.1, 0.01):
    print(f"z = 2, 1,000 steps at rate {rate:4.2f}: epsilon {epsilon_of(rate, 2.0, 1000):8.3f}")

# %% id=poisson topics=28b.differential-privacy
from dtcourse.federated import poisson_sample

draw = torch.Generator().manual_seed(0)
batches = [poisson_sample(40, 0.1, draw).tolist() for _ in range(12)]
print("40 samples at rate 0.1, sizes of 12 batches:", [len(batch) for batch in batches])
print("the first batches:", *batches[:3])
print(f"an empty batch: once in {1 / 0.9**40:.0f} steps")

# %% [markdown] id=level-predict
"""
Answer: (a) «n» times. (b) «n», «n» and «n». (c) No. Batches by Poisson sampling have different sizes, and some are empty: then the step is noise alone, since a step left out would tell that nobody came. The divisor is the *expected* size, *q n*, which is known beforehand.

**Of whom?** The unit is what may be added or taken away. There are two, and the same epsilon says different things of them:

||sample level, `SampleLevelWork`|client level, `ClientLevelFedAvg`|
|:--|:--|:--|
|bounded|what is told of any one sample|what is told of any one client, with all its samples|
|clipped|each sample's gradient|each client's whole change|
|drawn by Poisson|samples, in each local step|clients, in each round|
|noise is added by|the client, before it sends|the server, to the sum|
|so one trusts|nobody but oneself|the server, which sees each change|
|not hidden|that a client takes part; what all its samples have in common|what all clients have in common|

**Predict.** A linear classifier learns digits, once at each level. (a) At sample level there are 10 clients with 144 images or one less. At which epsilon does noise begin to cost accuracy: 8, 2 or 0.5? (b) At client level with epsilon 2: does accuracy depend on the number of clients, where all images are the same ones and are dealt to 50 clients or to 200? A round takes a fifth of the clients.

<details><summary>Answer</summary>
(a) Hardly at 8, somewhat at 2, and most at 0.5. (b) Yes: the noise's deviation is zC whatever the number of clients, and it is divided by qK. With four times the clients it is a quarter in the mean. So privacy for whole clients is for large fleets.
</details>
"""

# %% id=private topics=28b.differential-privacy
from dtcourse.federated import ClientLevelFedAvg, SampleLevelWork, even_sizes, label_skew

# A seed for the noise makes these numbers the same again. With real data it is left out: see section 7.
RATE, LOCAL, LR, NOISE_SEED = 0.2, 2, 0.5, 0


def private(level, num_clients, z):
    """On a rank: the share of held-out images that the trained model gets right."""
    parts = label_skew(Y, even_sizes(len(Y), num_clients), math.inf, seed=0)
    clients, model = Clients(X, Y, parts), build()
    options = {"rate": RATE, "max_norm": 1.0, "noise_multiplier": z, "noise_seed": NOISE_SEED}
    if level == "sample":
        federated = FedAvg(model, clients, SampleLevelWork(F.cross_entropy, LR, LOCAL, **options))
    else:
        work = ClientWork(F.cross_entropy, LR, LOCAL)
        federated = ClientLevelFedAvg(model, clients, work, **options)
    for _ in range(ROUNDS):
        federated.round()
    guess = model(TEST.images.double()).argmax(1)
    return (guess == TEST.labels).double().mean().item()


def all_private(cases):
    """On a rank: of each case."""
    return [private(*case) for case in cases]

# %% id=private-run topics=28b.differential-privacy
from dtcourse.federated import Budget, noise_multiplier_for

EPSILONS, FLEETS = (math.inf, 8.0, 2.0, 0.5), (("sample", 10), ("client", 50), ("client", 200))
STEPS = {"sample": ROUNDS * LOCAL, "client": ROUNDS}  # noisy sums that tell of a unit
noise = {level: {math.inf: 0.0} for level in STEPS}
for level, steps in STEPS.items():
    for epsilon in EPSILONS[1:]:
        noise[level][epsilon] = noise_multiplier_for(Budget(epsilon, DELTA), RATE, steps, 0.01)
cases = [(level, size, noise[level][epsilon]) for level, size in FLEETS for epsilon in EPSILONS]
[found] = launch(all_private, 1, cases, device="cpu")
accuracies = iter(found)
ACCURACY = {fleet: [next(accuracies) for _ in EPSILONS] for fleet in FLEETS}
names = {fleet: f"{fleet[0]} level, {fleet[1]} clients" for fleet in FLEETS}
rows = [
    (f"{e:g}", *(noise[level][e] for level in noise), *(ACCURACY[fleet][i] for fleet in FLEETS))
    for i, e in enumerate(EPSILONS)
]
columns = ["epsilon", "z, samples", "z, clients", *names.values()]
formats = dict.fromkeys(columns[1:3], "{:.2f}") | dict.fromkeys(columns[3:], "{:.0%}")
plots.table(rows, columns=columns, formats=formats, caption=f"delta = {DELTA:g}; one seed")

# %% id=private-picture hidden
plots.curves(
    {names[fleet]: (EPSILONS[1:], ACCURACY[fleet][1:]) for fleet in FLEETS},
    xlabel="epsilon (not one promise: of a sample, or of a client)", ylabel="accuracy on images held out",
    log_x=True, y_unit="percent", title="The same images: accuracy against epsilon, one seed",
)  # fmt: skip

# %% [markdown] id=noise-predict
"""
Answer: (a) without noise «n %», at 8 «n %», at 2 «n %», at 0.5 «n %». (b) At epsilon 2, 50 clients come to «n %» and 200 to «n %». One seed, one clipping length and one learning rate were run, which shows how noise acts and ranks nothing: a claim about learning would need many seeds, and settings tuned for each case. Without noise the fleets differ, too, since what is clipped differs.

δ is 10⁻³ here, since there are few samples. A rule of thumb is below 1 / *n*, or a mechanism that publishes one sample in *n* at random would pass.

**Does sample level protect a client?** Not with its epsilon. A client with 144 images is a group of 144 samples. Where each sample's loss is bounded by ε (and δ = 0), a group's is bounded by 144 ε, and that says nothing. Whoever writes all her sevens with a bar has told that in each sample.

**What this adds to the question:** clipping and noise bound what anybody can learn of one unit, from everything that is sent. The bound holds for attacks that nobody has thought of. Say the unit, δ and the sampling with each epsilon.

## 6 · The attacks again

The client of section 1 has one image, and takes one step of `SampleLevelWork`: its gradient is clipped to 1, and noise of deviation *z* is added to each number. All 32 rows now have noise of their own, so a good attacker does not divide one row. It takes the *x* and the δ whose products, rows δᵢ (*x*, 1), come nearest to all that was sent: the best matrix of rank one, by a singular value decomposition. And it knows that a pixel is from 0 to 1.

**Predict.** (a) Clipping alone, *z* = 0: how far is the image off? (b) With *z* = 0.01, 0.1 and 1: can one see the digit? (c) The client takes part in 256 rounds with the same image and *z* = 1, and the model hardly moves. Can one see it then? (d) The search of section 2 is run on gradients of its own model, with the same noise. Does it see the digit with 0.01, 0.1 and 1?

<details><summary>Answer</summary>
(a) Not at all: clipping makes all numbers shorter by the same factor, and a division cancels it. (b) With 0.01 it should be seen; with 1 not. The image's own part has a length below 1, spread over 2,080 numbers; the noise on these is z √2,080 = 46 z long. (c) The noise's mean over 256 rounds is a sixteenth: about as with one round and z = 0.06. Noise does not protect for ever, and epsilon grows meanwhile. (d) With 1 not. For the others one has to look: how much of the image is in a gradient depends on the model, and epsilon knows no model.
</details>
"""

# %% id=again topics=28b.differential-privacy,28b.gradient-inversion
from dtcourse.federated.clients import generator


def my_fit(weight, bias):
    """(64,): of all x, the one for which rows delta (x, 1) come nearest to what was sent."""
    _, _, rows = torch.linalg.svd(torch.cat([weight, bias[:, None]], dim=1), full_matrices=False)
    return (rows[0, :-1] / rows[0, -1]).clamp(0, 1)


def noisy_gradient(model, z, draw):
    """(N,): what the client of section 1 sends in one private step."""
    work = SampleLevelWork(F.cross_entropy, LR, 1, rate=1.0, max_norm=1.0, noise_multiplier=z)
    x, y = X[SECRET : SECRET + 1], Y[SECRET : SECRET + 1]
    return work.gradient(ModelVector(model), x, y, 1, draw)


def fitted(z, rounds):
    """The image that the server makes of the mean of some noisy gradients."""
    sent = [noisy_gradient(build(32), z, generator(0, "28b", number)) for number in range(rounds)]
    weight, bias, *_ = VECTOR.parts(sum(sent) / rounds)
    return my_fit(weight, bias)

# %% id=again-run topics=28b.differential-privacy,28b.gradient-inversion
CASES = [(0.0, 1), (0.01, 1), (0.1, 1), (1.0, 1), (1.0, 16), (1.0, 256)]
fits = [fitted(*case) for case in CASES]
rows = [
    (z, rounds, epsilon_of(1.0, z, rounds), pixels_off(fit, X[SECRET]))
    for (z, rounds), fit in zip(CASES, fits, strict=True)
]
columns = ["z", "rounds", f"epsilon at delta = {DELTA:g}", "a pixel is off by (root mean square)"]
usual = pixels_off(X.mean(0), X[SECRET])
print(f"who has nothing, and guesses the mean of all digits, is off by {usual:.2f}")
plots.table(rows, columns=columns, formats={columns[2]: "{:,.1f}", columns[3]: "{:.2f}"})

# %% id=again-search reason="a search in noise ends elsewhere on another processor" topics=28b.differential-privacy,28b.gradient-inversion
label = Y[SECRET : SECRET + 1]
searched = {}
for z in (0.01, 0.1, 1.0):
    sent = noisy_gradient(CONV, z, generator(0, "28b", 0))
    searched[z] = my_inversion(CONV, sent, label, cosine)[0]
    off = pixels_off(searched[z], X[SECRET])
    print(f"the search of section 2, z = {z:g}: a pixel is off by {off:.2f}")

# %% id=again-picture hidden reason="a search in noise ends elsewhere on another processor"
plots.images(
    torch.stack([X[SECRET], *fits, *searched.values()]).view(-1, 8, 8),
    ["the image", *(f"z = {z:g}" + (f", {n}" if n > 1 else "") for z, n in CASES),
     *(f"search, {z:g}" for z in searched)],
    columns=5, title="What is rebuilt under noise (and from the mean of so many rounds)",
)  # fmt: skip

# %% [markdown] id=break-text
"""
Answer: (a) not at all: «0.00». (b) «n», «n» and «n»; who has nothing is off by «n». (c) «n» after 256 rounds. (d) The search is off by «about n», «n» and «n».

Look at epsilon beside it. At *z* = 0.1 it is «n», which bounds next to nothing, and yet these attacks see little «(check)». So that *one attack* fails says less than a bound, and a large epsilon does not say that an attack succeeds. The bound is for the best attacker there can be, who may know all but one bit of the image.

**What this adds to the question:** noise works against these attacks, clipping alone does not, and rounds add up.

## 7 · Break it: three silent mistakes

None of these raises an error, and training goes on.

**The mean is clipped.** `torch.nn.utils.clip_grad_norm_` clips a batch's gradient, and noise is added for a *C* of one sample.

**Predict.** 32 images, of which one is left out. In units of *C* / 32, which the noise was made for: by how much may the step change where each sample is clipped, and where the mean is?

<details><summary>Answer</summary>
By 1 at most, where each is clipped (and the divisor stays 32). Where the mean is clipped to C, one sample may turn it: by more than 1, and with an outlier by up to 2 · 32. The noise was made for 1.
</details>
"""

# %% id=clip-mean topics=28b.differential-privacy
def largest_change(step, rows):
    """By how much the step changes where one row is left out, at most, in units of C / B, with C = 1."""
    whole = step(rows)
    left_out = (torch.cat([rows[:i], rows[i + 1 :]]) for i in range(len(rows)))
    return max((whole - step(rest)).norm().item() for rest in left_out) * len(rows)


def clip_each(rows):
    return clipped(rows, 1.0).sum(0) / 32


def clip_mean(rows):
    return clipped(rows.mean(0, keepdim=True), 1.0)[0]


rows = per_sample_gradients(ModelVector(LINEAR), F.cross_entropy, X[:32], Y[:32])
outlier = torch.cat([rows[:31], -100 * rows[31:]])
for name, batch in {"32 images": rows, "one of them an outlier": outlier}.items():
    found = [largest_change(step, batch) for step in (clip_each, clip_mean)]
    print(f"{name}: each clipped {found[0]:.2f}, the mean clipped {found[1]:.2f}")

# %% [markdown] id=seed-predict
"""
Answer: «1.00», and «n»; with an outlier «n». *Diagnosis*: leave one sample out, and measure. *Repair*: clip each sample's gradient, as `clip_each` does, and it is run beside it.

**The noise's seed is known.** Runs are to be repeatable, so a team draws the noise from the run's seed, and the seed is in the configuration that everybody has. (The package draws it from the system, unless it is given a `noise_seed`, as this lesson gives it to print the same numbers again.)

**Predict.** *z* = 1, as in section 6, and one round. The server knows the seed. What does it find?

<details><summary>Answer</summary>
The image, exactly: it draws the same noise and takes it off.
</details>
"""

# %% id=known-seed reason="the second seed comes from the system: another one each time" topics=28b.differential-privacy
from dtcourse.federated.clipping import noise_like


def off_without(sent, noise):
    """How far a pixel is off, where the server takes this noise off before it fits."""
    weight, bias, *_ = VECTOR.parts(sent - noise)
    return pixels_off(my_fit(weight, bias), X[SECRET])


sent = noisy_gradient(build(32), 1.0, generator(7, "noise"))
replayed = noise_like(sent, 1.0, generator(7, "noise"))
print(f"the seed is known: a pixel is off by {off_without(sent, replayed):.2f}")
own = torch.Generator()
own.seed()  # from the system, and nobody is told
sent = noisy_gradient(build(32), 1.0, own)
print(f"a seed of its own: off by {off_without(sent, replayed):.2f}")

# %% [markdown] id=twice-predict
"""
Answer: the image, off by «0.00». *Diagnosis*: run the step twice from the same data, and subtract: is there any noise in the difference? *Repair*: a seed from the system, told to nobody; it is run beside it. (Even then torch's generator is none for cryptography: who sees much of its output can predict the rest. Opacus has `secure_mode` for that.)

**The same masks twice.** Key agreement costs messages, so a team keeps the pairs' keys for the next round, and draws the masks from them without the round's number.

**Predict.** The server subtracts what client 1 sent in the first round from what it sends in the second. What does it have?

<details><summary>Answer</summary>
How client 1's vector has changed, exactly: equal masks cancel. Where the vector of the first round is known, or small, it has the second.
</details>
"""

# %% id=same-masks topics=28b.secure-aggregation
first, second = (CODE.encode(torch.tensor(v), 4) for v in ([0.5, 1.0, -2.0], [0.75, -1.0, 3.0]))
for name, number in (("the same masks", 0), ("masks of their own", 1)):
    difference = my_masked(1, second, FOUR, number) - my_masked(1, first, FOUR, 0)
    print(f"{name}: the difference is", CODE.decode(difference).tolist())
print("by which it has changed:", CODE.decode(second - first).tolist())

# %% [markdown] id=real-predict
"""
Answer: the change, to the last bit. *Diagnosis*: subtract two rounds, and look whether small numbers come out. *Repair*: the round's number goes into each mask, as in the second line; or keys are drawn anew, as `secure_sum` does in each call.

**What this adds to the question:** what protects is a chain of small conditions, and no loss curve shows that one is missing. Measure each: leave a sample out, replay the noise, subtract two rounds.

## 8 · The real thing

PyTorch has no secure aggregation and no accountant. What it has is per-sample gradients, `torch.func`; clipping and noise are three lines more. So this is DP-SGD without dtcourse.

**Predict.** Without noise, from the same model and batch: how far apart are a step of this and one of the package's?

<details><summary>Answer</summary>
By nothing but rounding: both clip each sample's gradient, and divide by the expected number.
</details>
"""

# %% id=real topics=28b.differential-privacy
from torch.func import functional_call, grad, vmap


def dp_sgd_step(model, x, y, lr, max_norm, noise_multiplier, expected, draw):
    """One private step of SGD on a Poisson batch; expected: its size on average, rate times samples."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(weights, one, label):
        return F.cross_entropy(functional_call(model, weights, (one[None],)), label[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
    norms = torch.cat([g.flatten(1) for g in each.values()], dim=1).norm(dim=1)
    scale = max_norm / norms.clamp(min=max_norm)
    for name, p in model.named_parameters():
        total = torch.einsum("b,b...->...", scale, each[name])
        noise = torch.randn(p.shape, generator=draw, dtype=p.dtype) * noise_multiplier * max_norm
        p.data -= lr * (total + noise) / expected

# %% id=real-run topics=28b.differential-privacy
x, y = X[:30], Y[:30]
own, ours = build(), ModelVector(build())
dp_sgd_step(own, x, y, 0.5, 1.0, 0.0, 40.0, torch.Generator().manual_seed(5))
work = SampleLevelWork(F.cross_entropy, 0.5, 1, rate=0.4, max_norm=1.0, noise_multiplier=0.0)
step = -0.5 * work.gradient(ours, x, y, 100, torch.Generator().manual_seed(5))
moved = ModelVector(own).read() - ours.read()
off = ((moved - step).norm() / step.norm()).item()
print(f"a step of torch.func's is {moved.norm():.6f} long, of SampleLevelWork {step.norm():.6f}")
print("relative difference:", "less than 1e-12" if off < 1e-12 else f"{off:.1e}")

# %% [markdown] id=questions
"""
||ours|PyTorch's|others' (by their documentation)|
|:--|:--|:--|:--|
|per-sample gradients|`per_sample_gradients`|`torch.func`: `vmap(grad(...))`|Opacus: hooks on layers, or `torch.func`|
|clipping, noise, sampling|`SampleLevelWork`|yours to write|Opacus: `PrivacyEngine().make_private(module=, optimizer=, data_loader=, noise_multiplier=, max_grad_norm=)`; `poisson_sampling=True` is its default|
|epsilon|`Accountant`: Rényi|–|Opacus: `PrivacyEngine(accountant="prv")` is its default, `"rdp"` the Rényi one|
|a client as the unit|`ClientLevelFedAvg`|–|Flower: `DifferentialPrivacyServerSideFixedClipping`, a wrapper of a strategy|
|secure aggregation|`secure_sum`, `SecureFedAvg`: lists are signed, and nobody vouches for keys|–|Flower: `SecAggPlusWorkflow` at the server and `secaggplus_mod` at clients, four stages; each client shares with some others (`num_shares`; Bell et al. 2020)|
|noise from|torch's generator, seeded by the system; or a `noise_seed`, to repeat a lesson|the same, yours to seed|Opacus: a cryptographer's generator with `secure_mode=True`|

## 9 · Two questions about a fleet

**Question 1.** 1,024 clients send 2²⁰ numbers of 16 bits each through secure aggregation. A sum of 1,024 of them needs 26 bits. How many times the bytes of the plain numbers does a client send, where numbers are packed in 26 bits, and where they travel as int32, as here? (The paper's abstract says 1.73.)

**Question 2.** A keyboard's model is trained on 1,000,000 devices by client-level DP-FedAvg: 5,000 of them per round on average, *z* = 1, 2,000 rounds (all assumptions). What is epsilon at δ = 10⁻⁷? And for a firm with 20,000 devices, 5,000 per round?

<details><summary>Answers, computed in the next cell</summary>
1. 1.74 times, a hundredth from the paper's figure, and 2.11 times in int32. Keys and the shares of 1,023 clients add about a ninth of the plain bytes.<br>
2. The rate is 0.5 %, so one device is seldom asked: «n». For the firm the rate is 25 %, and epsilon is «n», with the same noise in the mean: privacy comes from the crowd that is not asked.
</details>
"""

# %% id=questions-code topics=28b.secure-aggregation,28b.differential-privacy
clients, numbers = 1024, 2**20
plain = 2 * numbers
# keys; sealed shares and a digest; a digest; a signature; shares to unmask
besides = 96 + 160 * (clients - 1) + 32 + 32 + 64 + 66 * clients
for name, bits in (("26 bits", 26), ("int32", 32)):
    print(f"1. {name}: {(bits * numbers / 8 + besides) / plain:.2f} times the plain bytes")
print(f"   of which keys and shares: {besides / plain:.2f}")
for devices in (1_000_000, 20_000):
    epsilon = Accountant().epsilon_after(5_000 / devices, 1.0, 2_000, 1e-7)
    print(f"2. {devices:,} devices: epsilon {epsilon:.2f}")

# %% [markdown] id=remember
"""
## What to remember

- **What does a server learn?** From one client's change, often its data: one division where a linear layer has a bias, a search where it has none. Local steps do not hide one image, and batches help a little.
- **Secure aggregation** hides one client's change from the server: pairs' masks that cancel, a mask of one's own, and shares of both secrets, of which nobody gives out both. A client may drop out in any round.
- The threshold is above half of the clients, and clients sign the lists that they were sent: else forged lists uncover one. A server that invents clients is not kept from it here: that needs somebody who vouches for keys.
- It does not bound what the *sum* tells. **Differential privacy** does, for every attack: clip each unit, add noise, sample by Poisson, count.
- Name the unit. For a sample the client adds the noise itself; for a client the server does, and is trusted, unless both are combined.
- Clipping alone protects nothing. Noise averages out over rounds, and epsilon counts that.
- Noise of a known seed, a clipped mean and masks used twice raise no error, and do not protect as they should.

## Exercises

`dtcourse start 28b`, then `dtcourse check 28b`:

1. **Masks among neighbours**, where some never send.
2. **A secret from shares**, some of them wrong.
3. **A private gradient over ranks**: clipped per sample, with noise of the right size.
4. **What did the server ask for?** A diagnosis of logs.
5. **Choose** how many clients to ask, and the threshold.

## Further

- *Both at once.* Each client adds a part of the noise, secure aggregation adds up the parts, and the server is not trusted with any one change. Noise has to be of whole numbers then: Kairouz et al. 2102.06387 (distributed discrete Gaussian).
- *Without Poisson.* Phones come when they charge. DP-FTRL (Kairouz et al. 2103.00039) needs no sampling; Xu et al. 2305.18465 train a keyboard's models so, some with secure aggregation besides.
- *Compressed updates* and masks do not go together: masked numbers look like chance. `SecureFedAvg` refuses `compress`, and says so.

## Papers

Zhu et al. 1906.08935 (deep leakage from gradients) · Zhao et al. 2001.02610 (labels from gradients) · Geiping et al. 2003.14053 (inverting gradients) · Yin et al. 2104.07586 (batches of ImageNet's images) · Fowl et al. 2110.13057 (a server that changes the model) · Pasquini et al. 2022, *Eluding secure aggregation in federated learning via model inconsistency*, CCS · Bonawitz et al. 2017, *Practical secure aggregation for privacy-preserving machine learning*, CCS · Bell et al. 2020, *Secure single-server aggregation with (poly)logarithmic overhead*, CCS · Shamir 1979, *How to share a secret*, CACM 22(11) · Abadi et al. 1607.00133 (DP-SGD) · McMahan et al. 1710.06963 (DP-FedAvg) · Mironov et al. 1908.10530 (Rényi divergence of the sampled Gaussian mechanism) · Canonne et al. 2004.00010 (from Rényi to epsilon) · Chua et al. 2403.17673 (shuffled batches are not Poisson's).
"""
