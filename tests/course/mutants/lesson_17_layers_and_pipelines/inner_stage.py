"""Answers to inner_stage: see test_exercises.py."""

_LESSONS = """
def inner_stage(module, actions, shape):
    before, after, kept = dist.get_rank() - 1, dist.get_rank() + 1, []
    m = len(actions) // 2
    for _ in range(m):
        a = torch.empty(shape)
        dist.recv(a, before)
        y = module(a.requires_grad_())
        dist.send(y.detach(), after)
        kept.append((a, y))
    for a, y in kept:
        dy = torch.empty(shape)
        dist.recv(dy, after)
        y.backward(dy)
        dist.send(a.grad, before)
"""

MUTANTS = [
    (
        "the lesson's own pipeline, whatever the list says",
        "which micro-batch's graph does this backward belong to",
        _LESSONS,
    ),
    (
        "sends that block",
        "They wait for each other",
        (("sent.append((out, dist.isend(out, to)))", "dist.send(out, to)"),),
    ),
    (
        "gradients from the rank before",
        "dist.recv(came, before)",
        (('before if kind == "F" else after', "before"),),
    ),
    (
        "the newest graph first",
        "which micro-batch's graph does this backward belong to",
        (("x, y = kept.pop(i)", "x, y = kept.pop(max(kept))"),),
    ),
    (
        "the graphs are kept",
        "What still holds a graph after its backward",
        (("kept.pop(i)", "kept[i]"), ("y.backward(came)", "y.backward(came, retain_graph=True)")),
    ),
    (
        "gradients of the last micro-batch only",
        "what is added to what",
        (("y.backward(came)", "module.zero_grad()\n            y.backward(came)"),),
    ),
    (
        "each micro-batch weighted once more",
        "a mean taken twice",
        (("y.backward(came)", "y.backward(came / (len(actions) // 2))"),),
    ),
    (
        "the output's gradient sent on",
        "Where does a micro-batch's gradient come from",
        (("out, to = x.grad, before", "out, to = came, before"),),
    ),
    (
        "the input is no leaf that wants a gradient",
        "raised",
        (("came.requires_grad_()", "came"),),
    ),
    (
        "the backward's gradient goes forward again",
        "They wait for each other",
        (("out, to = x.grad, before", "out, to = x.grad, after"),),
    ),
    (
        "the course's own engine",
        "write that yourself",
        (
            (
                "before, after =",
                "from dtcourse.pipeline_parallel.engine import Pipeline\n    Pipeline\n    before, after =",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "recomputes instead of stashing",
        """
def inner_stage(module, actions, shape):
    rank, kept, works = dist.get_rank(), {}, []

    def send(tensor, to):
        works.append((tensor, dist.isend(tensor, to)))

    for kind, i in actions:
        came = torch.empty(shape)
        dist.recv(came, rank - 1 if kind == "F" else rank + 1)
        if kind == "F":
            with torch.no_grad():
                send(module(came), rank + 1)
            kept[i] = came
        else:
            x = kept.pop(i).requires_grad_()
            module(x).backward(came)
            send(x.grad, rank - 1)
    for _, work in works:
        work.wait()
""",
    ),
    (
        "autograd.grad, and receives posted one ahead",
        """
def inner_stage(module, actions, shape):
    rank, graphs, sent = dist.get_rank(), {}, []
    parameters = list(module.parameters())

    def post(n):
        if n >= len(actions):
            return None
        tensor = torch.empty(shape)
        return tensor, dist.irecv(tensor, rank - 1 if actions[n][0] == "F" else rank + 1)

    coming = post(0)
    for n, (kind, i) in enumerate(actions):
        came, work = coming
        work.wait()
        coming = post(n + 1)
        if kind == "F":
            came.requires_grad_()
            graphs[i] = came, module(came)
            out, to = graphs[i][1].detach(), rank + 1
        else:
            x, y = graphs.pop(i)
            out, *grads = torch.autograd.grad(y, [x, *parameters], came)
            for p, g in zip(parameters, grads):
                p.grad = g if p.grad is None else p.grad + g
            to = rank - 1
        sent.append((out, dist.isend(out, to)))
    for _, work in sent:
        work.wait()
""",
    ),
]

NOTHING = [
    ("performs nothing", "def inner_stage(module, actions, shape):\n    pass\n"),
    (
        "passes on what comes",
        """
def inner_stage(module, actions, shape):
    rank, sent = dist.get_rank(), []
    for kind, _ in actions:
        came = torch.empty(shape)
        dist.recv(came, rank - 1 if kind == "F" else rank + 1)
        sent.append((came, dist.isend(came, rank + 1 if kind == "F" else rank - 1)))
    for _, work in sent:
        work.wait()
""",
    ),
]
