# %% [markdown] id=title
"""
# Exercises 28 · Federated learning

A round over real ranks, SCAFFOLD with half of its way up, a diagnosis, and a decision that is run; each has a target in numbers. Run the cell under your answer: it says what is right, and asks a question about what is not yet.
What you need is in [lesson 28](../lessons/28-federated.ipynb); `dtcourse check 28` runs all checks at once.
"""

# %% id=imports
import torch
import torch.distributed as dist

from dtcourse.course import check

# %% [markdown] id=round
"""
## 1 · A round in one sum

In the lesson every rank knows how many samples each client has. Here a rank knows those of its own clients alone. `x`, (*n*,), is the server's model, the same on all ranks. `mine` is a list of this rank's clients that take part, and may be empty: (*n*ₖ, *y*ₖ), the samples of each and the model that it has come to. Return the server's next model: *x* + Σ *n*ₖ (*y*ₖ − *x*) / Σ *n*ₖ over all clients of all ranks. Where no rank has a client, *x* stays as it is.

**Target**, on 2, 3 and 5 ranks, in double precision: equal to one process to 1e-12; all ranks together send at most 2 (*p* − 1) (*n* + 1) numbers per round; and where a message takes one second, a round takes at most 2 (*p* − 1) seconds, one all-reduce's time on a ring.

An answer that uses `dtcourse.federated` is refused.
"""

# %% id=round-answer solution=round_in_one
def round_in_one(x, mine):
    """x (n,): the server's model; mine: (samples, y (n,)) of each client here. Returns the next model, (n,)."""
    ### BEGIN SOLUTION
    held = torch.zeros(len(x) + 1, dtype=x.dtype)
    for samples, y in mine:
        held[:-1] += samples * (y - x)
        held[-1] += samples
    dist.all_reduce(held)
    return x + held[:-1] / held[-1].clamp(min=1)
    ### END SOLUTION

# %% id=round-try
def on_a_rank(x, by_rank):
    return round_in_one(x, by_rank[dist.get_rank()])


X = torch.zeros(1, dtype=torch.double)
COME = [[(90, X)], [(8, X + 1), (2, X + 1)]]
# Try it here: from dtcourse import launch; launch(on_a_rank, 2, X, COME, backend="ring")[0]  # 0.1

# %% id=round-check check=check_round_in_one points=10
check("round_in_one", round_in_one)

# %% [markdown] id=up
"""
## 2 · SCAFFOLD with one vector up

A client of SCAFFOLD sends two vectors after a round: *y*ₖ − *x*, and how its variate has changed, *c*ₖ′ − *c*ₖ. One is enough. Write it over ranks, without weights: rank 0 is the server, every other rank is a client.

- On a client `gradient(y)` gives its gradient, (*n*,). On rank 0 it is `None`, and `x`, (*n*,), is the start; on a client `x` is zero, of the same shape and dtype.
- `drawn[t]` lists the clients of round *t*, and `steps[k]` is how many steps client *k* takes per round; both are the same on all ranks.
- A client's step is *y* ← *y* − lr (*g*ₖ(*y*) − *c*ₖ + *c*), with *c* = 0 and *c*ₖ = 0 at first. After it *c*ₖ′ = *c*ₖ − *c* + (*x* − *y*ₖ) / (*K* lr). Then *x* becomes the mean of *y*ₖ over the clients drawn, and *c* the mean of the variates of *all* clients.

Rank 0 returns the last (*x*, *c*), a client its last *c*ₖ.

**Target**, with 1, 2 and 4 clients, in double precision: equal to one process to 1e-10; per visit 2 *n* numbers from the server to the client and *n* back, and nothing to others; and where a message takes one second, a round takes two.

An answer that uses `dtcourse.federated` is refused.
"""

# %% id=up-answer solution=one_up
def one_up(gradient, x, drawn, steps, lr):
    """Returns (x, c) on rank 0, the client's c_k elsewhere; all of them (n,)."""
    ### BEGIN SOLUTION
    rank, num_clients = dist.get_rank(), dist.get_world_size() - 1
    c, own = torch.zeros_like(x), torch.zeros_like(x)
    for S in drawn:
        if rank == 0:
            down = torch.stack([x, c])
            changes = {k: torch.empty_like(x) for k in S}
            works = [dist.isend(down, k) for k in S]
            works += [dist.irecv(change, k) for k, change in changes.items()]
            for work in works:
                work.wait()
            # c_k' - c_k, of a client whose change has come
            moved = sum(-c - change / (steps[k] * lr) for k, change in changes.items())
            x = x + sum(changes.values()) / len(S)
            c = c + moved / num_clients
        elif rank in S:
            down = x.new_empty(2, len(x))
            dist.recv(down, 0)
            x, c = down
            y = x.clone()
            for _ in range(steps[rank]):
                y = y - lr * (gradient(y) - own + c)
            own = own - c + (x - y) / (steps[rank] * lr)
            dist.send(y - x, 0)
    return own if rank else (x, c)
    ### END SOLUTION

# %% id=up-try
def with_a_minimum(drawn):
    """On a rank: clients whose minima are at 1, 2, ..."""
    rank = dist.get_rank()
    gradient = (lambda y: y - rank) if rank else None
    return one_up(gradient, torch.zeros(1, dtype=torch.double), drawn, [0, 3, 5], 0.1)


# Try it here: from dtcourse import launch; launch(with_a_minimum, 3, [[1, 2]] * 40, backend="ring")[0]  # x near 1.5

# %% id=up-check check=check_one_up points=10
check("one_up", one_up)

# %% [markdown] id=diagnose
"""
## 3 · Which server is broken, and how?

A server runs FedAvg. You get its model before the first round and after each (`models`, (*T* + 1, *n*)), what every client has sent in each round (`changes`, (*T*, clients, *n*); zero where it was not drawn), who was drawn in each round (`drawn[t]`), and how many samples each client has (`samples[k]`). Return what is wrong, and the client where that makes sense:

- `("healthy", None)`: nothing but rounding to single precision;
- `("alike", None)`: clients count alike, whatever their samples;
- `("all samples", None)`: the sum is divided by the samples of all clients, and not of those drawn;
- `("lost", client)`: this client's change is never added, though its samples are counted;
- `("late", client)`: of this client, the server always adds the change of its visit before, and at its first visit nothing.

**Target:** 32 of 32 runs, of 4 to 7 clients and 5 to 8 rounds, drawn anew each time, and shuffled.
"""

# %% id=diagnose-answer solution=diagnose_server
def diagnose_server(models, changes, drawn, samples):
    """models (T + 1, n), changes (T, clients, n), drawn: by round, samples: by client. What is wrong, and who or None."""
    ### BEGIN SOLUTION
    def is_so(alike=False, everyone=False, lost=None, late=None):
        before = torch.zeros_like(changes[0])
        for t, S in enumerate(drawn):
            weights = {k: 1 if alike else samples[k] for k in S}
            total = torch.zeros_like(models[0])
            for k in S:
                change = before[k] if k == late else changes[t, k]
                total = total + (k != lost) * weights[k] * change
            before[S] = changes[t, S]
            moved = total / (sum(samples) if everyone else sum(weights.values()))
            if not torch.allclose(models[t] + moved, models[t + 1], rtol=1e-5, atol=1e-5):
                return False
        return True

    if is_so():
        return "healthy", None
    if is_so(alike=True):
        return "alike", None
    if is_so(everyone=True):
        return "all samples", None
    for client in range(len(samples)):
        if is_so(lost=client):
            return "lost", client
        if is_so(late=client):
            return "late", client
    return "none of these", None
    ### END SOLUTION

# %% id=diagnose-try
# Try it here: two clients in one round; the change of the second one does not arrive.
MODELS = torch.tensor([[0.0], [0.9]])
CHANGES = torch.tensor([[[1.0], [2.0]]])
# diagnose_server(MODELS, CHANGES, drawn=[[0, 1]], samples=[90, 10])

# %% id=diagnose-check check=check_diagnose_server points=10
check("diagnose_server", diagnose_server)

# %% [markdown] id=choose
"""
## 4 · Choose the method and the local steps

Eight clients with equal shares train in rounds, all of them in each, with full batches and one learning rate. You know neither their losses nor their links. `measure(method, steps)` runs rounds of FedAvg or SCAFFOLD with so many local steps, and returns a tuple of one number: the seconds until a thousandth is left of the loss above its minimum, or infinity where that does not come. A round takes the steps of a client and the vectors that it gets and sends. At most 11 of the 24 choices may be measured. Return the choice that you would train with: `(method, steps)`.

**Target:** on six federations, drawn anew each time, at most 1.1 times the best choice's time.
"""

# %% id=choose-answer solution=choose_method
def choose_method(measure, methods, steps):
    """measure(method, K) -> (seconds,); methods; steps: those that are possible, in rising order."""
    ### BEGIN SOLUTION
    seen = {}

    def seconds(method, at):
        if (method, at) not in seen:
            seen[method, at] = measure(method, steps[at])[0]
        return seen[method, at]

    for method in methods:
        for at in range(1, len(steps), 3):
            seconds(method, at)
    method, at = min(seen, key=seen.get)
    # Its neighbours, and one more on the better side.
    around = [one for one in (at - 1, at + 1) if 0 <= one < len(steps)]
    next_to = min(around, key=lambda one: seconds(method, one))
    further = next_to + (next_to - at)
    if seconds(method, next_to) < seconds(method, at) and 0 <= further < len(steps):
        seconds(method, further)
    method, at = min(seen, key=seen.get)
    return method, steps[at]
    ### END SOLUTION

# %% id=choose-try
# Try it here: what your function measures on a first federation, in seconds, and what it chooses.
# from dtcourse.course.judging import trials
# trials.practise("choose_method", choose_method)

# %% id=choose-check check=check_choose_method points=10
check("choose_method", choose_method)
