"""Answers to mean_in_int8: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_MAX = "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
_LARGEST = (
    "    largest = torch.where(largest.isfinite(), largest, torch.inf)  # no maximum hides that\n"
)
_SUM = "    dist.all_reduce(codes)\n"
_STEPS = "steps = torch.where(usable, rows / torch.where(usable, scale, 1.0), 0.0)"

# The lesson's own way by parts, with one scale for a part.
_LESSONS = """
import torch
import torch.distributed as dist


def codes_of(x):
    scale = (x.abs().max() / 127).clamp(min=1e-30).view(1)
    return torch.cat([scale.view(torch.uint8), (x / scale).round().to(torch.int8).view(torch.uint8)])


def numbers_of(message):
    return message[4:].view(torch.int8) * message[:4].clone().view(torch.float32)


def mean_in_int8(x, block):
    p, n = dist.get_world_size(), len(x)
    padded = torch.nn.functional.pad(x, (0, -n % p))
    parts = torch.stack([codes_of(part) for part in padded.chunk(p)])
    came = torch.empty_like(parts)
    dist.all_to_all_single(came, parts)
    message = codes_of(sum(map(numbers_of, came)) / p)
    found = [torch.empty_like(message) for _ in range(p)]
    dist.all_gather(found, message)
    return torch.cat([numbers_of(one) for one in found])[:n]
"""

_GATHERED = """
import torch
import torch.distributed as dist


def mean_in_int8(x, block):
    p, n = dist.get_world_size(), len(x)
    rows = torch.nn.functional.pad(x, (0, -n % block)).view(-1, block)
    scale = rows.abs().amax(1) / 127
    codes = (rows / torch.where(scale > 0, scale, 1.0)[:, None]).nan_to_num(0, 0, 0).round().to(torch.int8)
    scales = [torch.empty_like(scale) for _ in range(p)]
    dist.all_gather(scales, scale)
    everyone = [torch.empty_like(codes) for _ in range(p)]
    dist.all_gather(everyone, codes)
    total = sum(torch.where(s.isfinite(), s, torch.nan)[:, None] * c for s, c in zip(scales, everyone))
    return (total / p).flatten()[:n]
"""

MUTANTS = [
    ("the lesson's parts, one scale each", "half a step is", _LESSONS),
    ("all codes gathered by everyone", "does their number grow with the ranks", _GATHERED),
    (
        "the course's own quantiser",
        "dtcourse.compression",
        """
from dtcourse.compression import IntegerQuantizer, average


def mean_in_int8(x, block):
    return average(x, IntegerQuantizer(8, block=block))
""",
    ),
    ("each rank has its own scales", "what does one and the same code stand for", ((_MAX, ""),)),
    (
        "codes up to 127, so that sums wrap",
        "what does int8 hold",
        (("(127 // p)", "127"),),
    ),
    (
        "half of the codes that would fit",
        "How many codes may a rank use",
        (("(127 // p)", "(63 // p)"),),
    ),
    (
        "one scale for all blocks",
        "How many codes may a rank use",
        (
            (
                "largest = rows.abs().amax(1)\n",
                "largest = rows.abs().max().expand(len(rows)).clone()\n",
            ),
        ),
    ),
    ("the sum", "what is a mean of p numbers", (("(scale / p)", "scale"),)),
    ("truncated", "half a step is", (("steps.round().to", "steps.to"),)),
    (
        "codes in int32",
        "In what type do codes and sums travel",
        (("to(torch.int8)", "to(torch.int32)"),),
    ),
    (
        "codes in int16, and all 127 of them on each rank",
        "In what type do codes and sums travel",
        (("to(torch.int8)", "to(torch.int16)"), ("(127 // p)", "127")),
    ),
    (
        "divided by the scale of a block of zeros",
        "What is its scale, and what is divided by it",
        (
            (_STEPS, "steps = rows / scale"),
            ("mean = codes * (scale / p)", "mean = (codes + 0 * steps) * (scale / p)"),
        ),
    ),
    (
        "NaN becomes a code",
        "Nobody will see it",
        ((_LARGEST, "    largest = largest.nan_to_num(0.0, 1.0, 1.0)\n"),),
    ),
    (
        "a broken number breaks all",
        "What do blocks share",
        (("torch.where(broken, torch.nan, mean)", "torch.where(broken.any(), torch.nan, mean)"),),
    ),
    (
        "x is rounded in place",
        "It is the model's",
        (("    p, n = dist", "    x.mul_(1 + 1e-6)\n    p, n = dist"),),
    ),
    (
        "rank 0 alone stays away",
        "rank",
        ((_SUM, "    if dist.get_rank():\n        dist.all_reduce(codes)\n"),),
    ),
    (
        "the last block is lost",
        "a mean is a tensor of shape",
        ((".flatten()[:n]", ".flatten()[: n - block]"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def mean_in_int8(x, block):
    return torch.stack(everyones(x)).mean(0)
""",
    ),
]

ACCEPTED = [
    (
        "parts: decompressed, added in float32 and compressed again, with 127 codes",
        """
import torch
import torch.distributed as dist


def mean_in_int8(x, block):
    p, n = dist.get_world_size(), len(x)
    rows = torch.nn.functional.pad(x, (0, -n % block)).view(-1, block)
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % p))

    def compressed(rows):
        scale = rows.abs().amax(1) / 127
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        steps = rows / torch.where(scale > 0, scale, 1.0)[:, None]
        return scale, steps.nan_to_num(0, 0, 0).round().clamp(-127, 127).to(torch.int8)

    scale, codes = compressed(rows)
    scales, came = torch.empty_like(scale), torch.empty_like(codes)
    dist.all_to_all_single(scales, scale)
    dist.all_to_all_single(came, codes)
    mine = (came * scales[:, None]).view(p, -1, block).sum(0) / p
    scale, codes = compressed(mine)
    everyones = [torch.empty_like(scale) for _ in range(p)]
    dist.all_gather(everyones, scale)
    all_codes = [torch.empty_like(codes) for _ in range(p)]
    dist.all_gather(all_codes, codes)
    return (torch.cat(all_codes) * torch.cat(everyones)[:, None]).flatten()[:n]
""",
    ),
    (
        "sums by parts, in whole numbers, with messages of its own",
        (
            (
                _SUM,
                "    flat = torch.nn.functional.pad(codes.flatten(), (0, -codes.numel() % p)).view(p, -1)\n"
                "    came = torch.empty_like(flat)\n"
                "    dist.all_to_all_single(came, flat)\n"
                "    mine = came.sum(0, dtype=torch.int32).to(torch.int8)\n"
                "    found = [torch.empty_like(mine) for _ in range(p)]\n"
                "    dist.all_gather(found, mine)\n"
                "    codes = torch.cat(found)[: codes.numel()].view_as(codes)\n",
            ),
        ),
    ),
    (
        "largest numbers gathered, and the multiplication in double precision",
        (
            (
                _MAX,
                "    found = [torch.empty_like(largest) for _ in range(p)]\n"
                "    dist.all_gather(found, largest)\n    largest = torch.stack(found).amax(0)\n",
            ),
            ("mean = codes * (scale / p)", "mean = (codes.double() * scale.double() / p).float()"),
        ),
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef mean_in_int8(x, block):\n    return torch.zeros_like(x)\n",
    ),
    ("x as it is", "\ndef mean_in_int8(x, block):\n    return x.clone()\n"),
]
