"""Answers to ddp_with_buckets: see test_exercises.py."""

from tests.course.edits import edited

_ATTACH = """
def attach(model, bucket_bytes):
    buckets, full = [], True
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if full:
            buckets.append([])
        buckets[-1].append(p)
        full = sum(q.nbytes for q in buckets[-1]) >= bucket_bytes
    number = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    ready, sent = set(), []

    def send():
        flat = torch.cat([(torch.zeros_like(q) if q.grad is None else q.grad).flatten() for q in buckets[len(sent)]])
        sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def is_ready(p):
        ready.add(p)
        while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):
            send()

    def finish():
        while len(sent) < len(buckets):
            send()
        for bucket, (flat, work) in zip(buckets, sent, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for q, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
                q.grad = part.view_as(q)
        ready.clear()
        sent.clear()

    for p in number:
        p.register_post_accumulate_grad_hook(is_ready)
    return finish
"""

MUTANTS = [
    (
        "forgets to divide",
        "2 times too large",
        edited(_ATTACH, ("            flat /= dist.get_world_size()\n", "")),
    ),
    (
        "sends in the order of readiness",
        "in one and the same order, whatever",
        """
def attach(model, bucket_bytes):
    buckets, full = [], True
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if full:
            buckets.append([])
        buckets[-1].append(p)
        full = sum(q.nbytes for q in buckets[-1]) >= bucket_bytes
    number = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    ready, sent = set(), {}

    def send(i):
        flat = torch.cat([(torch.zeros_like(q) if q.grad is None else q.grad).flatten() for q in buckets[i]])
        sent[i] = flat, dist.all_reduce(flat, async_op=True)

    def is_ready(p):
        ready.add(p)
        if ready.issuperset(buckets[number[p]]):
            send(number[p])

    def finish():
        for i in range(len(buckets)):
            if i not in sent:
                send(i)
        for i, (flat, work) in sent.items():
            work.wait()
            flat /= dist.get_world_size()
            for q, part in zip(buckets[i], flat.split([q.numel() for q in buckets[i]]), strict=True):
                q.grad = part.view_as(q)
        ready.clear()
        sent.clear()

    for p in number:
        p.register_post_accumulate_grad_hook(is_ready)
    return finish
""",
    ),
    (
        "waits in the hook",
        "it waits in the hook",
        edited(
            _ATTACH,
            ("dist.all_reduce(flat, async_op=True)))", "dist.all_reduce(flat)))"),
            ("            work.wait()\n", ""),
        ),
    ),
    (
        "sends after backward",
        "When do you learn that a gradient is ready",
        edited(
            _ATTACH,
            (
                "        while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):\n            send()\n",
                "",
            ),
        ),
    ),
    (
        "all but the last are full before one is sent",
        "what does a full bucket wait for",
        edited(
            _ATTACH,
            (
                "while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):",
                "while len(ready) >= len(number) - len(buckets[-1]) and len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):",
            ),
        ),
    ),
    (
        "only the first bucket leaves in backward",
        "what does a full bucket wait for",
        edited(
            _ATTACH,
            (
                "while len(sent) < len(buckets) and ready.issuperset(buckets[len(sent)]):",
                "if not sent and ready.issuperset(buckets[0]):",
            ),
        ),
    ),
    (
        "one bucket for all",
        "When is a bucket full",
        edited(_ATTACH, (">= bucket_bytes", ">= 1 << 40")),
    ),
    (
        "gives frozen parameters a place",
        "frozen parameter need a place",
        edited(
            _ATTACH,
            (
                "reversed([p for p in model.parameters() if p.requires_grad])",
                "reversed(list(model.parameters()))",
            ),
            (
                "    for p in number:\n",
                "    for p in [p for p in number if p.requires_grad]:\n",
            ),
        ),
    ),
    (
        "does not begin anew in the next step",
        "step",
        edited(_ATTACH, ("        ready.clear()\n        sent.clear()\n", "")),
    ),
    (
        "waits for what is not used",
        "the ranks disagree on call",
        edited(
            _ATTACH,
            (
                "        while len(sent) < len(buckets):\n            send()\n        for bucket, (flat, work) in zip(buckets, sent, strict=True):",
                "        for bucket, (flat, work) in zip(buckets, sent, strict=False):",
            ),
        ),
    ),
    (
        "the lesson's own buckets and hooks, frozen parameters left out",
        "in one and the same order, whatever",
        """
def attach(model, bucket_bytes):
    buckets, full = [], True
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        buckets += [[]] if full else []
        buckets[-1].append(p)
        full = sum(q.nbytes for q in buckets[-1]) >= bucket_bytes
    missing, sent = [len(bucket) for bucket in buckets], []

    def my_ready(i):
        missing[i] -= 1
        if missing[i] == 0:
            flat = torch.cat([p.grad.flatten() for p in buckets[i]]) / dist.get_world_size()
            sent.append((buckets[i], flat, dist.all_reduce(flat, async_op=True)))

    def finish():
        for bucket, flat, work in sent:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        missing[:] = [len(bucket) for bucket in buckets]
        sent.clear()

    for i, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(lambda p, i=i: my_ready(i))
    return finish
""",
    ),
]

NOTHING = [
    (
        "attaches nothing",
        """
def attach(model, bucket_bytes):
    return lambda: None
""",
    ),
    (
        "PyTorch's DDP",
        """
def attach(model, bucket_bytes):
    ddp = nn.parallel.DistributedDataParallel(model)
    return lambda: ddp
""",
    ),
]

ACCEPTED = [
    (
        "divides before it sends, and waits for futures",
        (
            (
                "dist.all_reduce(flat, async_op=True)",
                "dist.all_reduce(flat, async_op=True).get_future()",
            ),
            ("        sent.append(", "        flat /= dist.get_world_size()\n        sent.append("),
            (
                "            work.wait()\n            flat /= dist.get_world_size()\n",
                "            work.wait()\n",
            ),
        ),
    ),
    (
        "copies the mean into the gradients that are there",
        (
            (
                "                q.grad = part.view_as(q)\n",
                "                if q.grad is None:\n"
                "                    q.grad = torch.empty_like(q)\n"
                "                q.grad.copy_(part.view_as(q))\n",
            ),
        ),
    ),
]
