"""Answers to two_versions: see test_exercises.py."""

_FORWARD = "self.versions[max(0, i // self.m - 1)]"
_BACKWARD = "self.versions[max(0, batch - 1)]"
_MEAN = "self.lr * self.total / self.m"
_KEEP = "self.versions = {batch: self.versions[batch], batch + 1: self.weight}"

# The lesson's PipeDream: the latest weights in each forward, kept for its backward; an update after each backward.
_LESSON = """
class TwoVersions:
    def __init__(self, weight, lr, m):
        self.weight, self.lr, self.acts = weight, lr, {}

    def forward(self, i, x):
        y = torch.tanh(x @ self.weight.T)
        self.acts[i] = x, y, self.weight
        return y

    def backward(self, i, dy):
        x, y, w = self.acts.pop(i)
        dz = dy * (1 - y**2)
        self.weight = self.weight - self.lr * dz.T @ x
        return dz @ w
"""

MUTANTS = [
    ("the lesson's PipeDream", "stages, m = ", _LESSON),
    (
        "the latest version in each forward, and that one in its backward",
        "Which version of the weights is to be its own",
        (
            (_FORWARD, "self.weight"),
            ("self.acts[i] = x, y", "self.acts[i] = x, y, self.weight"),
            ("x, y = self.acts.pop(i)", "x, y, met = self.acts.pop(i)"),
            (_BACKWARD, "met"),
        ),
    ),
    (
        "no stash: the backward takes the latest",
        "Does its backward take the same",
        ((_BACKWARD, "self.weight"),),
    ),
    (
        "the sum in place of the mean",
        "A new version is the latest one minus lr",
        ((_MEAN, "self.lr * self.total"),),
    ),
    (
        "the step starts from the older version",
        "A new version is the latest one minus lr",
        (("self.weight = self.weight -", f"self.weight = {_BACKWARD} -"),),
    ),
    (
        "the sum is never emptied",
        "A new version is the latest one minus lr",
        (("            self.total.zero_()\n", ""),),
    ),
    (
        "all versions are kept",
        "From which backward on does nobody need",
        ((_KEEP, "self.versions[batch + 1] = self.weight"),),
    ),
    (
        "the course's engine",
        "dtcourse.pipeline_parallel",
        """
from dtcourse.pipeline_parallel.pipedream import PipeDream


class TwoVersions(PipeDream):
    pass
""",
    ),
]

ACCEPTED = [
    (
        "gradients by autograd, versions in a list of two",
        """
class TwoVersions:
    def __init__(self, weight, lr, m):
        self.old = self.weight = weight
        self.lr, self.m, self.total, self.graphs = lr, m, None, {}

    def met(self, i):
        # In a batch's first forwards the latest is still the version before; then it is the older one.
        return self.old if i // self.m <= self.batch else self.weight

    batch = 1

    def forward(self, i, x):
        w = self.met(i).detach()
        self.graphs[i] = x, w
        return torch.tanh(x @ w.T)

    def backward(self, i, dy):
        x, w = self.graphs.pop(i)
        x, w = x.clone().requires_grad_(), w.requires_grad_()
        dx, dw = torch.autograd.grad(torch.tanh(x @ w.T), (x, w), dy)
        w.requires_grad_(False)
        self.total = dw if self.total is None else self.total.add_(dw)
        del dw
        if (i + 1) % self.m == 0:
            new = self.weight - self.lr / self.m * self.total
            self.old, self.weight, self.total = self.weight, new, None
            self.batch = i // self.m + 1
        return dx
""",
    ),
    (
        "the learning rate inside the sum",
        (
            ("self.total += dz.T @ x", "self.total -= self.lr / self.m * (dz.T @ x)"),
            (f"self.weight - {_MEAN}", "self.weight + self.total"),
        ),
    ),
]

NOTHING = [
    (
        "zeros",
        """
class TwoVersions:
    def __init__(self, weight, lr, m):
        self.weight = weight

    def forward(self, i, x):
        return torch.zeros_like(x)

    def backward(self, i, dy):
        return torch.zeros_like(dy)
""",
    ),
]
