"""Memory grows by the gradients' size with every step, and after some hundred steps there is none left.

Cause: the averages are begun with async_op=True, and each step's handles and vectors go into a list that is waited for
as a whole, and never emptied.
Found by: the bytes that stay alive from one step to the next, by the line that made them.
Repair: the list is emptied when all in it have been waited for. (Waiting for a handle twice would be another mistake.)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 2
KIND = "leaks"
TOOL = "memory"
NAMES = ("ranks 0 and 1", "flat = torch.cat(")
REPAIR = [
    ("        self.waited = len(self.pending)\n", "        self.pending.clear()\n"),
]


class GradientAverage:
    """Averages a model's gradients in one message, which goes while the rank does something else."""

    def __init__(self, model):
        self.parameters, self.pending, self.waited = list(model.parameters()), [], 0

    def start(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        self.pending.append((dist.all_reduce(flat, async_op=True), flat))

    def finish(self):
        for work, flat in self.pending[self.waited :]:
            work.wait()
            parts = (flat / dist.get_world_size()).split([p.numel() for p in self.parameters])
            for p, part in zip(self.parameters, parts, strict=True):
                p.grad.copy_(part.view_as(p))
        self.waited = len(self.pending)


def step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = GradientAverage(model)
    x = torch.randn(16, 6).chunk(dist.get_world_size())[dist.get_rank()]
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        average.start()
        losses.append(loss.detach().clone())  # while the gradients are on their way
        average.finish()
        optimizer.step()
    dist.all_reduce(torch.stack(losses))
    return {"steps": len(losses)}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
