"""Answers to buckets_to_owners: see test_exercises.py."""

_WAIT = "            work.wait()\n"
_SEND = "        under_way.append((list(filling), flat, send(flat, owner[filling[0]])))\n"
_FULL = "        full = sum(q.grad.nbytes for q in filling) + p.grad.nbytes > bucket_bytes\n"

MUTANTS = [
    ("never waited for", "are never waited for", ((_WAIT, ""),)),
    (
        "the last one is not waited for",
        "are never waited for",
        (("        close()\n        land()\n\n    return", "        close()\n\n    return"),),
    ),
    (
        "waited for at once",
        "What could backward do meanwhile",
        ((_SEND, _SEND + "        under_way[-1][-1].wait()\n"),),
    ),
    (
        "all of them under way",
        "How many buckets hold memory",
        (("            return\n        land()\n", "            return\n"),),
    ),
    (
        "sent when backward has ended",
        "Does it leave in backward",
        (
            (
                "        p.register_post_accumulate_grad_hook(ready)\n\n    def finish():\n",
                "        p.register_post_accumulate_grad_hook(order.append)\n\n    def finish():\n"
                "        for p in order:\n            ready(p)\n        order.clear()\n",
            ),
            ("    filling, under_way = [], []\n", "    filling, under_way, order = [], [], []\n"),
        ),
    ),
    ("a sum where the mean belongs", "Is it the sum or the mean", ((" / size\n", "\n"),)),
    (
        "to rank 0, whoever owns it",
        "is not that of one process",
        (("send(flat, owner[filling[0]])", "send(flat, 0)"),),
    ),
    (
        "no piece to a parameter: the bucket turned round",
        "does each parameter get its own piece",
        (
            (
                "zip(bucket, flat.split([p.numel() for p in bucket]), strict=True)",
                "zip(bucket, flat.flip(0).split([p.numel() for p in bucket]), strict=True)",
            ),
        ),
    ),
    (
        "one message per gradient, as in the lesson",
        "When does a bucket close",
        ((_FULL, "        full = True\n"),),
    ),
    (
        "buckets without a limit",
        "When does a bucket close",
        ((_FULL, "        full = False\n"),),
    ),
    (
        "kept everywhere",
        "Who needs",
        (("            if owner[bucket[0]] == rank:\n", "            if True:\n"),),
    ),
    (
        "the last bucket is forgotten",
        "When does a bucket close",
        (("    def finish():\n        close()\n", "    def finish():\n        filling.clear()\n"),),
    ),
]

NOTHING = [
    (
        "hooks nothing",
        """
def buckets_to_owners(model, owner, bucket_bytes, send):
    return lambda: None
""",
    ),
    (
        "an all-reduce, and the rest thrown away",
        """
def buckets_to_owners(model, owner, bucket_bytes, send):
    def finish():
        for p, rank in owner.items():
            dist.all_reduce(p.grad)
            p.grad = p.grad / dist.get_world_size() if rank == dist.get_rank() else None

    return finish
""",
    ),
]

ACCEPTED = [
    (
        "the owner divides",
        (
            (" / size\n", "\n"),
            (
                "                    p.grad = mean.view_as(p)\n",
                "                    p.grad = mean.view_as(p) / size\n",
            ),
        ),
    ),
    (
        "copied into the bucket as they come",
        """
def buckets_to_owners(model, owner, bucket_bytes, send):
    rank, size = dist.get_rank(), dist.get_world_size()
    now = {"bucket": [], "bytes": 0, "sent": None}

    def receive():
        if now["sent"] is None:
            return
        bucket, flat, work = now["sent"]
        work.wait()
        at = 0
        for p, _ in bucket:
            if owner[p] == rank:
                p.grad = flat[at : at + p.numel()].clone().view(p.shape)
            at += p.numel()
        now["sent"] = None

    def send_bucket():
        if now["bucket"]:
            receive()
            bucket = now["bucket"]
            flat = torch.cat([g for _, g in bucket])
            now.update(bucket=[], bytes=0, sent=(bucket, flat, send(flat, owner[bucket[0][0]])))

    def hook(p):
        gradient, p.grad = p.grad, None
        if now["bucket"] and (
            owner[now["bucket"][0][0]] != owner[p] or now["bytes"] + gradient.nbytes > bucket_bytes
        ):
            send_bucket()
        now["bucket"].append((p, gradient.flatten() * (1 / size)))
        now["bytes"] += gradient.nbytes

    for p in owner:
        p.register_post_accumulate_grad_hook(hook)

    def finish():
        send_bucket()
        receive()

    return finish
""",
    ),
]
