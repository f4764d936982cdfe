"""Answers to train_by_samples: see test_exercises.py."""

_REDUCE = "        dist.all_reduce(message)\n"
_WEIGHTED = "message[:-1] += len(y) * gradient"
_COUNT = "message[-1] += len(y)"
_BATCH = "batch = message[-1].item()"
_MEAN = "message[:-1] / batch"
_PEAK = "peak = base_lr * batch / base_batch"
_WARM = "rate = base_lr + (peak - base_lr) * seen / warmup"
_DONE = "done = min(1.0, (seen - warmup) / (total - warmup))"
_SEEN = "        seen += batch\n"
_RETURN = '    return {"seen": seen, "velocity": velocity}\n'
_BEGIN = '        velocity, seen = state["velocity"].clone(), state["seen"]\n'
_EMPTY = "        if batch == 0:\n            continue\n"
_UPDATE = "        velocity = momentum * velocity + gradient\n        weight -= rate * velocity\n"

MUTANTS = [
    (
        "a mean of the micro-batches' means",
        "How many samples does each micro-batch stand for",
        (
            (_WEIGHTED, "message[:-1] += gradient"),
            (_MEAN, "message[:-1] / dist.get_world_size() / max(1, len(step))"),
        ),
    ),
    ("each rank by itself", "How many samples does each", ((_REDUCE, ""),)),
    (
        "the gradient of a sum",
        "of how many samples is the step's mean",
        ((_MEAN, "message[:-1]"),),
    ),
    (
        "divided by this rank's samples and the ranks",
        "of how many samples is the step's mean",
        ((_MEAN, "message[:-1] / (dist.get_world_size() * max(1, sum(len(y) for _, y in step)))"),),
    ),
    (
        "the rule by this rank's batch",
        "of all ranks, larger than base_batch",
        ((_PEAK, "peak = base_lr * sum(len(y) for _, y in step) / base_batch"),),
    ),
    ("no rule", "of all ranks, larger than base_batch", ((_PEAK, "peak = base_lr"),)),
    (
        "the square-root rule",
        "The linear rule",
        ((_PEAK, "peak = base_lr * math.sqrt(batch / base_batch)"),),
    ),
    (
        "the peak of the first batch",
        "Which one does the peak belong to",
        (
            (
                _PEAK,
                "first = batch if seen == 0 else first\n        peak = base_lr * first / base_batch",
            ),
        ),
    ),
    (
        "warm-up from zero",
        "from base_lr to the peak",
        ((_WARM, "rate = peak * seen / warmup"),),
    ),
    (
        "this step's samples count as seen",
        "seen before this step",
        ((_WARM, _WARM.replace("* seen", "* (seen + batch)")),),
    ),
    (
        "a cosine over the whole run",
        "left after it",
        ((_DONE, "done = min(1.0, seen / total)"),),
    ),
    (
        "a cosine that comes up again",
        "comes up again",
        ((_DONE, "done = (seen - warmup) / (total - warmup)"),),
    ),
    (
        "steps are counted, as if the first batch stayed",
        "In the warm-up the learning rate goes",
        ((_SEEN, "        first = batch if seen == 0 else first\n        seen += first\n"),),
    ),
    (
        "the samples of a run before are forgotten",
        "steps, or samples",
        ((_RETURN, _RETURN.replace(": seen", ": 0")),),
    ),
    (
        "this rank's samples alone are in the state",
        "of how many ranks",
        (
            (
                _RETURN,
                "    own = sum(len(y) for step in steps for _, y in step)\n"
                '    before = state["seen"] if state else 0\n'
                '    return {"seen": before + own * dist.get_world_size(), "velocity": velocity}\n',
            ),
        ),
    ),
    (
        "the velocity starts anew",
        "What of the optimizer has to travel",
        ((_BEGIN, '        velocity, seen = torch.zeros_like(weight), state["seen"]\n'),),
    ),
    (
        "an empty step moves by the velocity",
        "It is no step",
        ((_EMPTY, "        batch = max(batch, 1)\n"),),
    ),
    ("zero by zero", "It is no step", ((_EMPTY, ""), (_BATCH, "batch = message[-1]"))),
    (
        "a rank without samples stays away",
        "waiting",
        ((_REDUCE, "        if step:\n            dist.all_reduce(message)\n"),),
    ),
    (
        "a message for the number of samples",
        "what can travel with it",
        (
            (
                _REDUCE,
                "        dist.all_reduce(message[:-1])\n        dist.all_reduce(message[-1:])\n",
            ),
        ),
    ),
    (
        "a message per micro-batch",
        "When do the others need a gradient",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    seen = state["seen"] if state else 0
    velocity = state["velocity"].clone() if state else torch.zeros_like(weight)
    most = max(map(len, steps))
    number = torch.tensor(most)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    for step in steps:
        whole = torch.zeros(len(weight) + 1, dtype=weight.dtype)
        for place in range(int(number)):
            part = torch.zeros_like(whole)
            if place < len(step):
                x, y = step[place]
                free = weight.clone().requires_grad_()
                part[:-1] = len(y) * torch.autograd.grad(loss_of(free, x, y), free)[0]
                part[-1] = len(y)
            dist.all_reduce(part)
            whole += part
        batch = whole[-1].item()
        if batch == 0:
            continue
        peak = base_lr * batch / base_batch
        rate = base_lr + (peak - base_lr) * seen / warmup if seen < warmup else None
        if rate is None:
            rate = peak * (1 + math.cos(math.pi * min(1.0, (seen - warmup) / (total - warmup)))) / 2
        velocity = momentum * velocity + whole[:-1] / batch
        weight -= rate * velocity
        seen += batch
    return {"seen": seen, "velocity": velocity}
""",
    ),
    (
        "all ranks' samples are gathered, as objects",
        "When do the others need a gradient",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    seen, velocity = state or (0, torch.zeros_like(weight))
    for step in steps:
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, step)
        whole = [micro for one in every for micro in one]
        if not whole:
            continue
        x, y = (torch.cat(parts) for parts in zip(*whole))
        free = weight.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(free, x, y), free)
        peak = base_lr * len(y) / base_batch
        done = min(1.0, (seen - warmup) / (total - warmup))
        rate = peak * (1 + math.cos(math.pi * done)) / 2
        if seen < warmup:
            rate = base_lr + (peak - base_lr) * seen / warmup
        velocity = momentum * velocity + gradient
        weight -= rate * velocity
        seen += len(y)
    return seen, velocity
""",
    ),
]

NOTHING = [
    (
        "does not train",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    return state
""",
    ),
    (
        "the course's schedule, by another module's name for it",
        """
import pkgutil


def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    theirs = pkgutil.resolve_name("dtcourse.large" + "_batch:linear_scaling")
    for step in steps:
        weight -= theirs(base_lr, base_batch, sum(len(y) for _, y in step) or 1)
    return None
""",
    ),
]

ACCEPTED = [
    (
        "backward accumulates a sum, and the state is a tuple",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    seen, velocity = state if state is not None else (0, torch.zeros_like(weight))
    for step in steps:
        free = weight.detach().clone().requires_grad_()
        free.grad = torch.zeros_like(free)
        own = 0
        for x, y in step:
            (loss_of(free, x, y) * len(y)).backward()
            own += len(y)
        message = torch.cat([torch.tensor([own], dtype=weight.dtype), free.grad])
        dist.all_reduce(message)
        batch = int(message[0])
        if not batch:
            continue
        part = 1.0 if seen >= warmup else seen / warmup
        rate = (1 - part) * base_lr + part * base_lr * batch / base_batch
        if seen >= warmup:
            share = min(seen - warmup, total - warmup) / (total - warmup)
            rate *= math.cos(math.pi * share / 2) ** 2
        velocity = velocity.mul(momentum).add(message[1:] / batch)
        weight.sub_(velocity, alpha=rate)
        seen += batch
    return seen, velocity
""",
    ),
    (
        "a rank's micro-batches as one",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    if state is None:
        state = torch.zeros(len(weight) + 1, dtype=weight.dtype)  # velocity and samples in one
    state = state.clone()
    velocity = state[:-1]
    for step in steps:
        message = torch.zeros_like(state)
        if step:
            x, y = (torch.cat(parts) for parts in zip(*step))
            free = weight.clone().requires_grad_()
            message[:-1], message[-1] = torch.autograd.grad(loss_of(free, x, y) * len(y), free)[0], len(y)
        dist.all_reduce(message)
        batch, seen = message[-1].item(), state[-1].item()
        if batch > 0:
            peak = base_lr * batch / base_batch
            if seen < warmup:
                rate = base_lr + (peak - base_lr) * (seen / warmup)
            else:
                rate = peak / 2 * (1 + math.cos(math.pi * min(1, (seen - warmup) / (total - warmup))))
            velocity.mul_(momentum).add_(message[:-1] / batch)
            weight.add_(velocity, alpha=-rate)
            state[-1] += batch
    return state
""",
    ),
    (
        "PyTorch's SGD, whose state dict is part of the state",
        """
def train_by_samples(weight, state, steps, loss_of, base_lr, base_batch, warmup, total, momentum):
    weight.requires_grad_()
    sgd = torch.optim.SGD([weight], lr=base_lr, momentum=momentum)
    seen = 0
    if state:
        seen = state["seen"]
        sgd.load_state_dict(state["sgd"])
    for step in steps:
        gradient = torch.zeros(len(weight) + 1, dtype=weight.dtype)
        for x, y in step:
            (one,) = torch.autograd.grad(loss_of(weight, x, y), weight)
            gradient += torch.cat([one, torch.ones(1)]) * len(y)
        dist.all_reduce(gradient)
        batch = gradient[-1].item()
        if batch:
            ratio = batch / base_batch
            done = min(1.0, (seen - warmup) / (total - warmup))
            cosine = ratio * (1 + math.cos(math.pi * done)) / 2
            sgd.param_groups[0]["lr"] = base_lr * (1 + (ratio - 1) * seen / warmup if seen < warmup else cosine)
            weight.grad = gradient[:-1] / batch
            sgd.step()
            seen += batch
    return {"seen": seen, "sgd": sgd.state_dict()}
""",
    ),
]
