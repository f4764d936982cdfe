"""Answers to two_means: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HEAD = "\nimport torch\nimport torch.distributed as dist\nimport torch.nn.functional as F\n\n\ndef two_means(model, x, y, weight):\n"
_COUNTED = "counted = weight[y[y >= 0]].sum()"
_TOLD = "    dist.all_reduce(told)\n"
_FIRST = 'loss = F.cross_entropy(logits, y, weight=weight, reduction="sum") / told[0]'
_SECOND = "    loss = loss + 0.01 * logits.logsumexp(1).square().sum() / told[1]\n"
_BACK = "(dist.get_world_size() * loss).backward()"

MUTANTS = [
    (
        "what is told is in single precision",
        "In which precision",
        (
            (
                "told = torch.stack([counted, counted.new_tensor(len(y))])",
                "told = torch.tensor([float(counted), float(len(y))])",
            ),
        ),
    ),
    (
        "two backwards through one forward",
        "different gradients",
        (
            (_SECOND, "    second = 0.01 * logits.logsumexp(1).square().sum() / told[1]\n"),
            (
                "    (dist.get_world_size() * loss).backward()",
                "    (dist.get_world_size() * loss).backward(retain_graph=True)\n"
                "    (dist.get_world_size() * second).backward()",
            ),
        ),
    ),
    ("past DDP", "different gradients", (("logits = model(x)", "logits = model.module(x)"),)),
    (
        "its own mean by a mask, over nothing",
        "not a number",
        _HEAD
        + """    counts = (y >= 0) * weight[y.clamp(min=0)]
    own = torch.stack([counts.sum(), counts.new_tensor(len(y))])
    told = own.clone()
    dist.all_reduce(told)
    logits = model(x)
    each = -logits.log_softmax(1)[torch.arange(len(y)), y.clamp(min=0)] * counts
    loss = own[0] / told[0] * each.sum() / own[0]
    loss = loss + 0.01 * logits.logsumexp(1).square().sum() / told[1]
    (dist.get_world_size() * loss).backward()
""",
    ),
    (
        "the second is a mean over labels that count",
        "Over which samples",
        (
            ("counted.new_tensor(len(y))", "counted.new_tensor((y >= 0).sum().item())"),
            (_SECOND, _SECOND.replace("logits.logsumexp(1)", "logits[y >= 0].logsumexp(1)")),
        ),
    ),
    (
        "each rank its own two means, as DDP alone",
        "How many samples stand behind each",
        _HEAD
        + """    logits = model(x)
    loss = F.cross_entropy(logits, y, weight=weight) + 0.01 * logits.logsumexp(1).square().mean()
    loss.backward()
""",
    ),
    (
        "the lesson's weight: by samples, for both",
        "What does a rank's cross-entropy stand for",
        _HEAD
        + """    everyone = torch.tensor([len(y)])
    dist.all_reduce(everyone)
    logits = model(x)
    loss = F.cross_entropy(logits, y, weight=weight) + 0.01 * logits.logsumexp(1).square().mean()
    (dist.get_world_size() * len(y) / everyone.item() * loss).backward()
""",
    ),
    (
        "the course's own",
        "dtcourse.heterogeneous",
        _HEAD
        + """    from dtcourse.heterogeneous import WeightedDataParallel

    model = WeightedDataParallel(model.module)
    with model.step(len(y)):
        model.weigh(F.cross_entropy(model(x), y, weight=weight)).backward()
""",
    ),
    ("labels are counted, not weights", "where classes have weights", ((_COUNTED, "counted = (y >= 0).sum().double()"),)),
    ("DDP divides, too", "times too small", ((_BACK, "loss.backward()"),)),
    ("its own counts alone", "How many samples stand behind each", ((_TOLD, ""), (_BACK, "loss.backward()"))),
    (
        "the first over all, the second over its own",
        "The first mean is right",
        ((_SECOND, "    loss = loss + 0.01 * logits.logsumexp(1).square().mean() / dist.get_world_size()\n"),),
    ),
    (
        "the second over labels that count",
        "who knows that number of all ranks",
        ((_SECOND, _SECOND.replace("logits.logsumexp(1)", "logits[y >= 0].logsumexp(1)")),),
    ),
    ("without the second", "who knows that number of all ranks", ((_SECOND, ""),)),
    (
        "two backwards, two averages",
        "How often does DDP average",
        _HEAD
        + """    told = torch.stack([weight[y[y >= 0]].sum(), weight.new_tensor(len(y))])
    dist.all_reduce(told)
    p = dist.get_world_size()
    first = F.cross_entropy(model(x), y, weight=weight, reduction="sum") / told[0]
    (p * first).backward()
    kept = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    (p * 0.01 * model(x).logsumexp(1).square().sum() / told[1]).backward()
    for one, before in zip(model.parameters(), kept):
        one.grad += before
""",
    ),
    (
        "who has nothing stays away",
        "wait",
        (("    logits = model(x)\n", "    if not len(y):\n        return\n    logits = model(x)\n"),),
    ),
    (
        "all samples on all ranks",
        "numbers do ranks need of each other",
        _HEAD
        + """    p, sizes = dist.get_world_size(), torch.zeros(dist.get_world_size(), dtype=torch.int64)
    sizes[dist.get_rank()] = len(y)
    dist.all_reduce(sizes)
    rows = torch.zeros(int(sizes.max()), 7, dtype=x.dtype)
    rows[: len(y), :6], rows[: len(y), 6] = x, y.double()
    everyone = [torch.empty_like(rows) for _ in range(p)]
    dist.all_gather(everyone, rows)
    rows = torch.cat([one[:n] for one, n in zip(everyone, sizes.tolist())])
    logits, labels = model(rows[:, :6]), rows[:, 6].long()
    loss = F.cross_entropy(logits, labels, weight=weight) + 0.01 * logits.logsumexp(1).square().mean()
    loss.backward()
""",
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch
import torch.nn.functional as F


def two_means(model, x, y, weight):
    told = torch.stack([weight[y[y >= 0]].sum(), weight.new_tensor(len(y))])
    told = sum(everyones(told, "counts"))
    with model.no_sync():
        logits = model(x)
        loss = F.cross_entropy(logits, y, weight=weight, reduction="sum") / told[0]
        (loss + 0.01 * logits.logsumexp(1).square().sum() / told[1]).backward()
    for at, one in enumerate(model.parameters()):
        one.grad = sum(everyones(one.grad, f"gradient {at}"))
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "its own means without a case for nothing: the loss is nan there, its gradient is not",
        _HEAD
        + """    own = torch.stack([weight[y[y >= 0]].sum(), weight.new_tensor(len(y))])
    told = own.clone()
    dist.all_reduce(told)
    logits = model(x)
    loss = own[0] / told[0] * F.cross_entropy(logits, y, weight=weight)
    loss = loss + own[1] / told[1] * 0.01 * logits.logsumexp(1).square().mean()
    (dist.get_world_size() * loss).backward()
""",
    ),
    (
        "its own means, each by what it counts of all",
        _HEAD
        + """    own = torch.stack([weight[y[y >= 0]].sum(), weight.new_tensor(len(y))])
    told = own.clone()
    dist.all_reduce(told)
    logits = model(x)
    loss = 0 * logits.sum()
    if own[0] > 0:
        loss = loss + own[0] / told[0] * F.cross_entropy(logits, y, weight=weight)
    if len(y):
        loss = loss + own[1] / told[1] * 0.01 * logits.logsumexp(1).square().mean()
    (dist.get_world_size() * loss).backward()
""",
    ),
    (
        "by hand: no_sync, one vector of gradients and counts, one all-reduce",
        _HEAD
        + """    with model.no_sync():
        logits = model(x)
        parts = [
            F.cross_entropy(logits, y, weight=weight, reduction="sum"),
            0.01 * logits.logsumexp(1).square().sum(),
        ]
    parameters = list(model.parameters())
    told = torch.stack([weight[y[y >= 0]].sum(), weight.new_tensor(len(y))])
    dist.all_reduce(told)
    found = torch.autograd.grad(parts[0] / told[0] + parts[1] / told[1], parameters)
    flat = torch.cat([one.flatten() for one in found])
    dist.all_reduce(flat)
    for parameter, one in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad = one.view_as(parameter).clone()
""",
    ),
    (
        "sample by sample, with a weight for each, gathered counts",
        _HEAD
        + """    counted = y >= 0
    mine = torch.tensor([float(weight[y[counted]].sum()), float(len(y))], dtype=torch.double)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    weights, samples = torch.stack(everyone).mean(0).tolist()
    logits = model(x)
    each = -logits.log_softmax(1)[torch.arange(len(y)), y.clamp(min=0)]
    each = each * weight[y.clamp(min=0)] * counted / weights
    each = each + 0.01 * logits.logsumexp(1) ** 2 / samples
    each.sum().backward()
""",
    ),
]

NOTHING = [
    ("nothing", _HEAD + "    return None\n"),
    ("a forward", _HEAD + "    model(x)\n"),
]
