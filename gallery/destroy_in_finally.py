"""After the first validation the run dies: "Default process group has not been initialized". It was, and has trained.

Cause: the validation forms a group of its own and takes it down in a `finally`, with destroy_process_group() and no
argument, which takes down all groups, the default one too.
Found by: what took down which groups at which line, beside the call that wanted one afterwards.
Repair: the group is given to destroy_process_group. That of all ranks is taken down once, where the program ends.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 3
KIND = "raises"
TOOL = "groups"
NAMES = ("Ranks 0, 1 and 2", "dist.destroy_process_group()", "the default group")
REPAIR = [
    ("        dist.destroy_process_group()\n", "        dist.destroy_process_group(group)\n"),
]


def validate(model, x, y):
    group = dist.new_group()  # so that its messages do not mix with the training's
    try:
        with torch.no_grad():
            loss = F.mse_loss(model(x), y)
        dist.all_reduce(loss, group=group)
        return loss.item() / dist.get_world_size()
    finally:
        dist.destroy_process_group()


def step():
    size = dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.chunk(size)[dist.get_rank()] for t in (torch.randn(12, 4), torch.randn(12, 1)))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizer.step()
        losses.append(validate(model, x, y))
    return {"losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
