"""Answers to gradients_go_home: see test_exercises.py."""

from tests.course.edits import changed

_ZERO_2 = """
def gradients_go_home(model, owner):
    rank, size = dist.get_rank(), dist.get_world_size()

    def send(p):
        p.grad /= size
        dist.reduce(p.grad, dst=owner[p])
        if owner[p] != rank:
            p.grad = None

    for p in owner:
        p.register_post_accumulate_grad_hook(send)
"""

MUTANTS = [
    (
        "a sum where the mean belongs",
        "Is it the sum or the mean",
        changed(_ZERO_2, "        p.grad /= size\n", ""),
    ),
    (
        "to rank 0, whoever owns it",
        "Is it the sum or the mean",
        changed(_ZERO_2, "dst=owner[p]", "dst=0"),
    ),
    (
        "never freed",
        "Who needs",
        changed(_ZERO_2, "        if owner[p] != rank:\n            p.grad = None\n", ""),
    ),
    (
        "an all-reduce",
        "which collective brings it to one rank",
        changed(_ZERO_2, "dist.reduce(p.grad, dst=owner[p])", "dist.all_reduce(p.grad)"),
    ),
    (
        "freed at the end of backward",
        "as they are sent, or at the end",
        """
def gradients_go_home(model, owner):
    rank, size = dist.get_rank(), dist.get_world_size()
    waiting = []

    def send(p):
        waiting.append(p)
        if len(waiting) < len(owner):
            return
        for q in waiting:
            q.grad /= size
            dist.reduce(q.grad, dst=owner[q])
            if owner[q] != rank:
                q.grad = None
        waiting.clear()

    for p in owner:
        p.register_post_accumulate_grad_hook(send)
""",
    ),
    (
        "hooks on frozen parameters",
        "that doesn't require gradient",
        changed(_ZERO_2, "for p in owner:", "for p in model.parameters():"),
    ),
    (
        "divided on the owner only, after the others have gone",
        "Is it the sum or the mean",
        changed(
            _ZERO_2,
            "        p.grad /= size\n        dist.reduce",
            "        if owner[p] == rank:\n            p.grad /= size\n        dist.reduce",
        ),
    ),
]

NOTHING = [
    (
        "hooks nothing",
        """
def gradients_go_home(model, owner):
    pass
""",
    ),
    (
        "an all-reduce, and the rest thrown away",
        """
def gradients_go_home(model, owner):
    def send(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
        if owner[p] != dist.get_rank():
            p.grad = None

    for p in owner:
        p.register_post_accumulate_grad_hook(send)
""",
    ),
]

ACCEPTED = [
    (
        "the owner divides",
        (
            ("        p.grad /= size\n", ""),
            (
                "        if owner[p] != rank:\n            p.grad = None\n",
                "        p.grad = p.grad / size if owner[p] == rank else None\n",
            ),
        ),
    ),
    (
        "asked for at once, waited for in the same hook",
        (
            (
                "        dist.reduce(p.grad, dst=owner[p])\n",
                "        dist.reduce(p.grad, dst=owner[p], async_op=True).wait()\n",
            ),
        ),
    ),
]
