"""Sequence parallelism: the loss is near that of one GPU, and stays a little beside it, more with each rank added.

Cause: each rank shifts its own part of the sequence by one, so the last token of a part has no label: of four parts
three predictions are lost, and they are those across the cuts.
Found by: the gradients against those of one process on the whole sequence.
Repair: shift first, then cut labels and inputs alike. Known from most ports of a training script to context
parallelism: in Hugging Face's models the loss shifts inside, after the cut.
"""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 4
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("3.weight",)
REPAIR = [
    (
        "mine = tokens.chunk(world_size, dim=1)[rank]\n    inputs, labels = mine[:, :-1], mine[:, 1:]",
        "inputs = tokens[:, :-1].chunk(world_size, dim=1)[rank]\n"
        "    labels = tokens[:, 1:].chunk(world_size, dim=1)[rank]",
    )
]

VOCABULARY, LENGTH = 23, 64


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, VOCABULARY)
    )


def text():
    return torch.randint(VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def sum_of_losses(model, inputs, labels):
    logits = model(inputs)
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def step():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, tokens = build(), text()
    mine = tokens.chunk(world_size, dim=1)[rank]
    inputs, labels = mine[:, :-1], mine[:, 1:]
    count = torch.tensor(labels.numel())
    dist.all_reduce(count)
    loss = sum_of_losses(model, inputs, labels) / count
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


def reference():
    model, tokens = build(), text()
    (sum_of_losses(model, tokens[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()).backward()
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
