"""Answers to sharded_scaler: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_REDUCE = "        dist.all_reduce(squares)\n"
_SQUARES = "squares = sum(g.double().square().sum() for g in sums)"

MUTANTS = [
    (
        "each rank decides for itself",
        "some ranks stepped and others did not",
        ((_REDUCE, ""),),
    ),
    (
        "the lesson's own, for one rank",
        "some ranks stepped and others did not",
        """
class ShardedScaler:
    def __init__(self, scale, interval, max_norm):
        self.factor, self.interval, self.good, self.max_norm, self.sums = scale, interval, 0, max_norm, None

    def scale(self, loss):
        return loss * self.factor

    def get_scale(self):
        return self.factor

    def add(self, gradients):
        new = [g.float() for g in gradients]
        self.sums = new if self.sums is None else [a + b for a, b in zip(self.sums, new)]

    def step(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.finite = all(g.isfinite().all() for g in self.sums)
        norm = None
        if self.finite:
            for p, g in zip(parameters, self.sums):
                p.grad = g / self.factor
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
            optimizer.step()
        self.sums = None
        self.good = self.good + 1 if self.finite else 0
        if not self.finite:
            self.factor /= 2
        elif self.good == self.interval:
            self.factor, self.good = self.factor * 2, 0
        return norm
""",
    ),
    (
        "adds up in 16 bits",
        "In which type are they added up",
        (
            ("wide = [g.float() for g in gradients]", "wide = [g.clone() for g in gradients]"),
            ("p.grad = g * (", "p.grad = g.float() * ("),
        ),
    ),
    (
        "keeps the last micro-batch only",
        "Which micro-batches",
        (("            total += g\n", "            total.copy_(g)\n"),),
    ),
    (
        "sums go on into the next step",
        "What does each step begin with",
        (("sums, self.sums = self.sums, None", "sums = self.sums"),),
    ),
    (
        "does not count anew after an overflow",
        "which event sets that count to zero",
        (
            (
                "self.factor, self.good_steps = self.factor / 2, 0\n",
                "self.factor = self.factor / 2\n",
            ),
        ),
    ),
    (
        "micro-batches count as steps",
        "does a micro-batch count as a step",
        (
            ("self.good_steps += 1", "self.good_steps += 4"),
            ("== self.growth_interval", ">= self.growth_interval"),
        ),
    ),
    (
        "the norm of scaled gradients",
        "without a scale",
        (("norm = squares.sqrt().item() / self.factor", "norm = squares.sqrt().item()"),),
    ),
    (
        "the mean over ranks",
        "Over which ranks is it a sum",
        ((_REDUCE, _REDUCE + "        squares /= dist.get_world_size()\n"),),
    ),
    (
        "the norms are added, not their squares",
        "Over which ranks is it a sum",
        (
            (_SQUARES, _SQUARES + ".sqrt()"),
            ("squares.sqrt().item()", "squares.item()"),
        ),
    ),
    (
        "never unscales",
        "What does the optimizer see as gradient",
        (("/ max(norm, self.max_norm) / self.factor", "/ max(norm, self.max_norm)"),),
    ),
    (
        "never clips",
        "What does the optimizer see as gradient",
        (("self.max_norm / max(norm, self.max_norm)", "1.0"),),
    ),
    (
        "steps with zeros after an overflow",
        "what does it do in a step that is skipped",
        (
            (
                "            return None\n",
                "            for p in parameters:\n                p.grad = torch.zeros_like(p)\n"
                "            optimizer.step()\n            return None\n",
            ),
        ),
    ),
    (
        "asks after each micro-batch",
        "and how often",
        (
            (
                "        wide = [g.float() for g in gradients]\n",
                "        wide = [g.float() for g in gradients]\n"
                "        dist.all_reduce(sum(g.double().square().sum() for g in wide))\n",
            ),
        ),
    ),
    (
        "an empty shard takes no part",
        "rank",
        (
            (
                _REDUCE,
                "        if sum(g.numel() for g in sums):\n            dist.all_reduce(squares)\n",
            ),
        ),
    ),
]

MUTANTS.append(
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        (
            ("class ShardedScaler:\n", EVERYONES + "class ShardedScaler:\n"),
            (_REDUCE, "        squares = sum(everyones(squares))\n"),
        ),
    )
)

NOTHING = [
    (
        "scales nothing",
        """
class ShardedScaler:
    def __init__(self, scale, growth_interval, max_norm):
        self.factor = float(scale)

    def scale(self, loss):
        return loss

    def get_scale(self):
        return self.factor

    def add(self, gradients):
        pass

    def step(self, optimizer):
        optimizer.step()
        return 0.0
""",
    ),
]

ACCEPTED = [
    (
        "a flag and a sum of squares, in two messages",
        (
            (
                _REDUCE,
                "        bad = torch.tensor(float(not all(g.isfinite().all() for g in sums)))\n"
                "        dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"
                "        dist.all_reduce(squares)\n",
            ),
            ("if not math.isfinite(norm):", "if bad:"),
        ),
    ),
    (
        "notes what is infinite as it comes, and gathers",
        """
class ShardedScaler:
    def __init__(self, scale, growth_interval, max_norm):
        self.factor, self.growth, self.limit = float(scale), growth_interval, max_norm
        self.good = 0
        self.begin()

    def begin(self):
        self.total, self.infinite = None, False

    def scale(self, loss):
        return self.factor * loss

    def get_scale(self):
        return torch.tensor(self.factor)

    def add(self, gradients):
        flat = torch.cat(gradients).double() / self.factor
        self.infinite |= not bool(flat.isfinite().all())
        self.total = flat if self.total is None else self.total + flat

    def step(self, optimizer):
        mine = torch.stack([self.total.square().sum(), torch.tensor(float(self.infinite)).double()])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        squares, infinite = torch.stack(everyone).sum(0)
        total = self.total
        self.begin()
        if infinite > 0:
            self.factor, self.good = self.factor * 0.5, 0
            return None
        self.good = (self.good + 1) % self.growth
        if self.good == 0:
            self.factor *= 2
        norm = squares.sqrt()
        total = total * torch.clamp(self.limit / norm, max=1.0)
        parameters = optimizer.param_groups[0]["params"]
        for p, g in zip(parameters, total.split([p.numel() for p in parameters])):
            p.grad = g.float().view_as(p)
        optimizer.step()
        return norm
""",
    ),
]
