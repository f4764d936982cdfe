"""Answers to one_bit_mean: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HEAD = "\nimport torch\nimport torch.distributed as dist\nimport torch.nn.functional as F\n\n\n"
_LEFT = "self.left = wanted - torch.stack(seen)"
_PART = "self.left_of_part = part - unpacked(message, mine)"
_SUM = "part = sum(unpacked(message, mine) for message in came) / p + self.left_of_part"
_SCALE = "scale = x.abs().sum(1) / real.sum(1).clamp(min=1)"
_REST = "What does each compression leave out"
_SHARE = "Which numbers have a scale in common"
_BITS = "In how many bits"

# The lesson's cell place-by-hand, and four lines: its signs in an all-reduce.
_LESSONS = (
    _HEAD
    + """class OneBitMean:
    def __init__(self, n, block):
        self.left = 0.0

    def __call__(self, g):
        wanted = g + self.left
        sent = wanted.abs().mean() * wanted.sign()
        self.left = wanted - sent
        update = sent.clone()
        dist.all_reduce(update)
        return update / dist.get_world_size()
"""
)
# The lesson's two values per block, with feedback, in an all-reduce of whole numbers.
_BLOCKS = (
    _HEAD
    + """def my_one_bit(rows):
    below = rows < 0
    low = rows.clamp(max=0).sum(1, keepdim=True) / below.sum(1, keepdim=True).clamp(min=1)
    high = rows.clamp(min=0).sum(1, keepdim=True) / (~below).sum(1, keepdim=True).clamp(min=1)
    return torch.where(below, low, high)


def blocks(x, size):
    rows = F.pad(x, (0, -len(x) % size)).view(-1, size)
    return my_one_bit(rows).flatten()[: len(x)]


class OneBitMean:
    def __init__(self, n, block):
        self.left, self.block = 0.0, block

    def __call__(self, g):
        wanted = g + self.left
        sent = blocks(wanted, self.block)
        self.left = wanted - sent
        update = sent.clone()
        dist.all_reduce(update)
        return update / dist.get_world_size()
"""
)
# As many bits as one may send, and all of them to everybody.
_GATHERED = (
    _HEAD
    + """class OneBitMean:
    def __init__(self, n, block):
        self.left, self.block = torch.zeros(-(-n // block) * block), block
        self.real = (torch.arange(len(self.left)) < n).view(-1, block)

    def __call__(self, g):
        wanted = (F.pad(g, (0, len(self.left) - len(g))) + self.left).view(-1, self.block)
        scale = wanted.abs().sum(1) / self.real.sum(1)
        bits = F.pad((wanted < 0).flatten(), (0, -wanted.numel() % 8)).view(-1, 8)
        message = torch.cat([scale.view(torch.uint8), (bits * 2 ** torch.arange(8)).sum(1).to(torch.uint8)])
        everyone = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, message)

        def numbers(one):
            size = one[: 4 * len(scale)].clone().view(torch.float32)[:, None]
            below = ((one[4 * len(scale) :, None] >> torch.arange(8)) & 1).flatten()[: wanted.numel()]
            return torch.where(below.view_as(wanted) > 0, -size, size) * self.real

        self.left = (wanted - numbers(message)).flatten()
        return (sum(map(numbers, everyone)) / len(everyone)).flatten()[: len(g)]
"""
)

MUTANTS = [
    ("the lesson's cell, and an all-reduce", _SHARE, _LESSONS),
    ("the lesson's two values per block, and an all-reduce", _BITS, _BLOCKS),
    ("everybody's bits to everybody", "to how many ranks", _GATHERED),
    (
        "the course's own",
        "dtcourse.compression",
        (("        self.n, self.rows = n,", "        from dtcourse.compression import ScaledSign\n\n        ScaledSign()\n        self.n, self.rows = n,"),),
    ),
    ("no feedback", _REST, ((_LEFT, "pass"), (_PART, "pass"))),
    ("none on the way there", _REST, ((_LEFT, "pass"),)),
    ("none on the way back", _REST, ((_PART, "pass"),)),
    ("what is left of this gradient alone", _REST, ((_LEFT, "self.left = wanted - self.left - torch.stack(seen)"),)),
    ("what is left of this sum alone", _REST, ((_PART, "self.left_of_part = part - self.left_of_part - unpacked(message, mine)"),)),
    ("the other sign is kept", _REST, ((_LEFT, "self.left = torch.stack(seen) - wanted"),)),
    ("a sum", "how many vectors are in the sum", ((_SUM, _SUM.replace(" / p", "")),)),
    ("the residual of the part is divided too", _REST, ((_SUM, "part = (sum(unpacked(message, mine) for message in came) + self.left_of_part) / p"),)),
    ("a scale per part", _SHARE, ((_SCALE, "scale = (x.abs().sum() / real.sum().clamp(min=1)).expand(len(x)).clone()"),)),
    (
        "the last block, which is shorter, is left out",
        "How many numbers does the last block have",
        (("(torch.arange(p * self.rows * block) < n)", "(torch.arange(p * self.rows * block) < n // block * block)"),),
    ),
    ("the gradient itself is changed", "g itself was changed", (("        rows, block = self", "        g.mul_(1.5).div_(1.4)\n        rows, block = self"),)),
    (
        "each rank keeps its own part whole",
        "another mean than rank 0",
        (("        return torch.stack(back)", "        back[rank] = part\n        return torch.stack(back)"),),
    ),
    ("a block per row", "a mean is a vector of", ((".flatten()[: self.n]\n        ### END", "\n        ### END"),)),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


class OneBitMean:
    def __init__(self, n, block):
        pass

    def __call__(self, g):
        return torch.stack(everyones(g)).mean(0)
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "two values per block, bits by numpy, parts sent one by one",
        """
import numpy as np
import torch
import torch.distributed as dist


class OneBitMean:
    def __init__(self, n, block):
        world = dist.get_world_size()
        blocks = [(first, min(first + block, n)) for first in range(0, n, block)]
        each = -(-len(blocks) // world)
        self.parts = [blocks[r * each : (r + 1) * each] for r in range(world)]
        self.rest = torch.zeros(n, dtype=torch.double)
        self.rest_of_sum = torch.zeros(n, dtype=torch.double)

    def squeeze(self, x, part):
        # The message of a part of x, and what it says.
        values, flags, said = [], [], torch.zeros_like(x)
        for first, last in part:
            one = x[first:last]
            below = one < 0
            pair = [float(one[b].mean()) if b.any() else 0.0 for b in (below, ~below)]
            values += pair
            flags.append(below)
            pair = torch.tensor(pair, dtype=torch.float32).double()
            said[first:last] = torch.where(below, pair[0], pair[1])
        if not part:
            return torch.zeros(0, dtype=torch.uint8), said
        bits = torch.from_numpy(np.packbits(torch.cat(flags).numpy()))
        return torch.cat([torch.tensor(values, dtype=torch.float32).view(torch.uint8), bits]), said

    def stretch(self, message, part, n):
        x, head = torch.zeros(n, dtype=torch.double), 8 * len(part)
        if not part:
            return x
        values = message[:head].clone().view(torch.float32).double()
        start, end = part[0][0], part[-1][1]
        below = torch.from_numpy(np.unpackbits(message[head:].numpy()))[: end - start].bool()
        for i, (first, last) in enumerate(part):
            x[first:last] = torch.where(below[first - start : last - start], values[2 * i], values[2 * i + 1])
        return x

    def length(self, part):
        return 8 * len(part) + -(-sum(last - first for first, last in part) // 8)

    def __call__(self, g):
        me, world, n = dist.get_rank(), dist.get_world_size(), len(g)
        wanted = g.double() + self.rest
        squeezed = [self.squeeze(wanted, part) for part in self.parts]
        self.rest = wanted - sum(said for _, said in squeezed)
        others = [r for r in range(world) if r != me]
        total = squeezed[me][1]
        buffers = {r: torch.empty(self.length(self.parts[me]), dtype=torch.uint8) for r in others}
        if self.parts[me]:
            works = [dist.irecv(buffer, r) for r, buffer in buffers.items()]
        else:
            works = []
        works += [dist.isend(squeezed[r][0], r) for r in others if self.parts[r]]
        for work in works:
            work.wait()
        total = total + sum(self.stretch(buffer, self.parts[me], n) for buffer in buffers.values())
        mine = total / world + self.rest_of_sum
        message, said = self.squeeze(mine, self.parts[me])
        self.rest_of_sum = mine - said
        keep = torch.zeros(n, dtype=torch.bool)
        for first, last in self.parts[me]:
            keep[first:last] = True
        self.rest_of_sum[~keep] = 0
        back = {r: torch.empty(self.length(self.parts[r]), dtype=torch.uint8) for r in others}
        works = [dist.irecv(buffer, r) for r, buffer in back.items() if self.parts[r]]
        if self.parts[me]:
            works += [dist.isend(message, r) for r in others]
        for work in works:
            work.wait()
        return (said + sum(self.stretch(b, self.parts[r], n) for r, b in back.items())).float()
""",
    ),
    (
        "one residual for both ways",
        (
            (_SUM, "part = sum(unpacked(message, mine) for message in came) / p"),
            # What the sum has left out is a gradient of this rank's in the next step, as large as it counts there.
            (_PART, "self.left[rank] += p * (part - unpacked(message, mine))"),
        ),
    ),
    (
        "the root of the mean square for a scale, a little smaller",
        ((_SCALE, "scale = 0.8 * (x.square().sum(1) / real.sum(1).clamp(min=1)).sqrt()"),),
    ),
]

NOTHING = [
    ("zeros", _HEAD + "class OneBitMean:\n    def __init__(self, n, block):\n        pass\n\n    def __call__(self, g):\n        return torch.zeros_like(g)\n"),
    ("the rank's own gradient", _HEAD + "class OneBitMean:\n    def __init__(self, n, block):\n        pass\n\n    def __call__(self, g):\n        return g\n"),
]  # fmt: skip
