"""Trains a small convolutional net on handwritten digits, on one device.

python lessons/scripts/06b_single_device.py
"""

import argparse

import torch
from torch.utils.data import DataLoader, RandomSampler

from dtcourse import data, device
from dtcourse.models import ConvNet


def main(arguments=None) -> None:
    """Reads its arguments, trains, evaluates after each epoch, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--save", help="where to write the weights")
    args = parser.parse_args(arguments)
    here = device.current()

    train, test = data.digits("train"), data.digits("test")
    order = torch.Generator()
    sampler = RandomSampler(train, generator=order)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)

    model = ConvNet((8, 16)).to(here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        order.manual_seed(epoch)
        total = torch.zeros(1, device=here)
        for images, labels in loader:
            logits = model(images.to(here))
            loss = torch.nn.functional.cross_entropy(logits, labels.to(here))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()

        model.eval()
        right = torch.zeros(1, device=here)
        with torch.no_grad():
            for images, labels in DataLoader(test, args.batch):
                logits = model(images.to(here))
                right += (logits.argmax(1) == labels.to(here)).sum()
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, {right.item():.0f} right")

    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
