"""Answers to scaler: see test_exercises.py."""

from tests.course.edits import edited

_SCALER = """
class Scaler:
    def __init__(self, scale, growth_interval):
        self.factor, self.growth_interval = float(scale), growth_interval
        self.good_steps, self.overflow = 0, False
    def scale(self, loss):
        return loss * self.factor
    def get_scale(self):
        return self.factor
    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients = [g for g in gradients if g is not None]
        bad = torch.tensor([float(not all(g.isfinite().all() for g in gradients))])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        self.overflow = bool(bad)
        if self.overflow:
            return False
        for g in gradients:
            g /= self.factor
        optimizer.step()
        return True
    def update(self):
        if self.overflow:
            self.factor, self.good_steps = self.factor / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.factor, self.good_steps = self.factor * 2, 0
"""

MUTANTS = [
    (
        "each rank decides for itself",
        "some ranks stepped and others did not",
        edited(_SCALER, ("        dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n", "")),
    ),
    (
        "steps in spite of the overflow",
        "When may it step",
        edited(_SCALER, ("            return False\n", "            pass\n")),
    ),
    (
        "never unscales",
        "What does the optimizer see as gradient",
        edited(_SCALER, ("g /= self.factor", "pass")),
    ),
    (
        "does not count anew after an overflow",
        "which event sets that count to zero",
        edited(
            _SCALER,
            (
                "self.factor, self.good_steps = self.factor / 2, 0",
                "self.factor = self.factor / 2",
            ),
        ),
    ),
    (
        "grows with every good step after the first few",
        "which event sets that count to zero",
        edited(
            _SCALER,
            (
                "self.factor, self.good_steps = self.factor * 2, 0",
                "self.factor, self.good_steps = self.factor * 2, self.growth_interval - 1",
            ),
        ),
    ),
    (
        "sends all gradients",
        "or one thing about them",
        edited(
            _SCALER,
            (
                "bad = torch.tensor([float(not all(g.isfinite().all() for g in gradients))])",
                "bad = torch.cat([1.0 - g.isfinite().float() for g in gradients])",
            ),
            ("bool(bad)", "bool(bad.max())"),
        ),
    ),
    (
        "the lesson's own, for one rank",
        "some ranks stepped and others did not",
        """
class Scaler:
    def __init__(self, scale, interval):
        self.factor, self.interval, self.good = scale, interval, 0

    def scale(self, loss):
        return loss * self.factor

    def get_scale(self):
        return self.factor

    def step(self, optimizer):
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.finite = all(g.isfinite().all() for g in found)
        if self.finite:
            for g in found:
                g /= self.factor
            optimizer.step()
        return self.finite

    def update(self):
        self.good = self.good + 1 if self.finite else 0
        if not self.finite:
            self.factor /= 2
        elif self.good == self.interval:
            self.factor, self.good = self.factor * 2, 0
""",
    ),
]

NOTHING = [
    (
        "scales nothing",
        """
class Scaler:
    def __init__(self, scale, growth_interval):
        self.factor = float(scale)

    def scale(self, loss):
        return loss

    def get_scale(self):
        return self.factor

    def step(self, optimizer):
        optimizer.step()
        return True

    def update(self):
        pass
""",
    ),
    (
        "PyTorch's, on each rank",
        """
class Scaler(torch.amp.GradScaler):
    def __init__(self, scale, growth_interval):
        super().__init__('cpu', init_scale=scale, growth_interval=growth_interval)

    def step(self, optimizer):
        super().step(optimizer)
        return True
""",
    ),
]

ACCEPTED = [
    (
        "multiplies by the inverse before it looks, as PyTorch does",
        (
            (
                "        gradients = [g for g in gradients if g is not None]\n",
                "        gradients = [g for g in gradients if g is not None]\n"
                "        for g in gradients:\n            g.mul_(1 / self.factor)\n",
            ),
            ("        for g in gradients:\n            g /= self.factor\n", ""),
        ),
    ),
    (
        "how many gradients are bad, as a whole number",
        (
            (
                "bad = torch.tensor([float(not all(g.isfinite().all() for g in gradients))])\n"
                "        dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n",
                "bad = torch.tensor(sum(int((~g.isfinite()).sum()) for g in gradients))\n"
                "        dist.all_reduce(bad)\n",
            ),
        ),
    ),
]
