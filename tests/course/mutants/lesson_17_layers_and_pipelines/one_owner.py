"""Answers to one_owner: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_LESSONS = """
def one_owner(table):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    ends = dist.new_group([0, last]) if last else None
    if table is not None and last:
        dist.broadcast(table.detach(), src=0, group=ends)

    def before_step():
        if table is not None and last:
            dist.all_reduce(table.grad, group=ends)

    return before_step, lambda: None
"""

MUTANTS = [
    (
        "the lesson's repair: both copies step",
        "What does an optimizer do with a parameter that has no gradient",
        _LESSONS,
    ),
    (
        "copies start apart",
        "Which values do both copies start with",
        (
            ("    after_step()  # both start with the owner's values\n", ""),
            (
                "            dist.recv(table.detach(), 0)",
                "            other = torch.empty_like(table)\n            dist.recv(other, 0)",
            ),
        ),
    ),
    (
        "the owner's gradient is replaced",
        "whose gradients does the owner step with",
        (("table.grad += other", "table.grad = other"),),
    ),
    (
        "a mean where the sum belongs",
        "whose gradients does the owner step with",
        (("table.grad += other", "table.grad = (table.grad + other) / 2"),),
    ),
    (
        "the last rank steps with its own gradient, too",
        "What does an optimizer do with a parameter that has no gradient",
        (("            table.grad = None  # so the optimizer has nothing to do with it\n", ""),),
    ),
    (
        "a gradient of zeros",
        "What does an optimizer do with a parameter that has no gradient",
        (
            (
                "table.grad = None  # so the optimizer has nothing to do with it",
                "table.grad.zero_()",
            ),
        ),
    ),
    (
        "nothing comes back",
        "what do the last rank's copy",
        (("    return before_step, after_step", "    return before_step, lambda: None"),),
    ),
    (
        "everybody takes part",
        "none of them to or from inner ranks",
        (
            (
                "        if last > 0 and rank == 0:\n            dist.send(table.detach(), last)\n        elif last > 0 and rank == last:\n            dist.recv(table.detach(), 0)",
                "        value = torch.empty(7, 3) if table is None else table.detach()\n        for to in range(1, last + 1):\n            if rank == 0:\n                dist.send(value, to)\n            elif rank == to:\n                dist.recv(value, 0)",
            ),
        ),
    ),
    (
        "the gradient goes both ways",
        "Who needs the gradient, and who the new values",
        (
            (
                "            dist.send(table.grad, 0)\n",
                "            dist.send(table.grad, 0)\n            dist.recv(torch.empty_like(table), 0)\n",
            ),
            (
                "            table.grad += other\n",
                "            table.grad += other\n            dist.send(table.grad, last)\n",
            ),
        ),
    ),
    (
        "the owner never receives",
        "They wait for each other",
        (("            dist.recv(other, last)\n            table.grad += other\n", ""),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """def one_owner(table):
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def before_step():
        found = everyones(torch.zeros(7, 3) if rank != last else table.grad)
        if rank == 0 and last:
            table.grad += found[last]
        elif rank == last and last:
            table.grad = None

    def after_step():
        found = everyones(torch.zeros(7, 3) if table is None else table.detach())
        if table is not None:
            table.detach().copy_(found[0])

    after_step()
    return before_step, after_step
""",
    ),
    (
        "one rank alone sends to itself",
        "should not be the same as the rank",
        (("if last == 0 or rank not in (0, last):", "if rank not in (0, last):"),),
    ),
]

ACCEPTED = [
    (
        "the first rank sends with isend, and on the last copy_",
        """
def one_owner(table):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1 or table is None:
        return (lambda: None), (lambda: None)
    buffer = torch.empty_like(table, requires_grad=False)

    if rank == 0:

        def before_step():
            dist.irecv(buffer, size - 1).wait()
            table.grad.add_(buffer)

        def after_step():
            dist.isend(table.data, size - 1).wait()

    else:

        def before_step():
            dist.isend(table.grad, 0).wait()
            table.grad = None

        def after_step():
            dist.recv(buffer, 0)
            with torch.no_grad():
                table.copy_(buffer)

    after_step()
    return before_step, after_step
""",
    ),
    (
        "in double precision on its way",
        (
            (
                "            other = torch.empty_like(table)\n            dist.recv(other, last)\n            table.grad += other",
                "            other = torch.empty_like(table).detach()\n            dist.recv(other, last)\n            table.grad = (table.grad.double() + other.double()).float()",
            ),
        ),
    ),
]

NOTHING = [
    (
        "both go their own way",
        """
def one_owner(table):
    return (lambda: None), (lambda: None)
""",
    ),
]
