"""Answers to transpose: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_BACK = "            return Transpose.apply(grad)\n"
_BLOCKS = "blocks = torch.stack([block.t() for block in rows.chunk(size, dim=1)])"
_LAST = "    return Transpose.apply(rows)\n"

MUTANTS = [
    (
        "gathers the whole matrix everywhere",
        "Which collective sends each rank only its own part",
        (
            (
                "            received = torch.empty_like(blocks)\n            dist.all_to_all_single(received, blocks)\n",
                "            wholes = [torch.empty_like(blocks) for _ in range(size)]\n            dist.all_gather(wholes, blocks)\n"
                "            received = torch.stack([whole[dist.get_rank()] for whole in wholes])\n",
            ),
        ),
    ),
    (
        "moves the blocks and leaves them as they are",
        "should end with",
        ((_BLOCKS, "blocks = torch.stack([block.contiguous() for block in rows.chunk(size, dim=1)])"),),
    ),
    (
        "right shape, blocks only reshaped",
        "what is still to be done inside each",
        (
            (_BLOCKS, "blocks = torch.stack([block.contiguous() for block in rows.chunk(size, dim=1)])"),
            ("return torch.cat(list(received), dim=1)", "return received.reshape(received.shape[2], -1)"),
        ),
    ),
    ("transposes its own rows and nothing else", "should end with", "\ndef transpose(rows):\n    return rows.t().contiguous()\n"),
    (
        "without a backward",
        "PyTorch does not go back through dist's calls",
        ((_LAST, "    return Transpose.apply(rows.detach())\n"),),
    ),
    (
        "backward stays on its rank",
        "on which rank does each number land",
        ((_BACK, "            return grad.reshape(grad.shape[1] // dist.get_world_size(), -1)\n"),),
    ),
    (
        "divided by the number of ranks",
        "another gradient than in one process",
        ((_BACK, "            return Transpose.apply(grad) / dist.get_world_size()\n"),),
    ),
    (
        "the sum of all ranks' gradients, as of an all-reduce",
        "another gradient than in one process",
        ((_BACK, "            back = Transpose.apply(grad)\n            dist.all_reduce(back)\n            return back\n"),),
    ),
    (
        "backward gathers",
        "in forward and backward",
        (
            (
                _BACK,
                "            size = dist.get_world_size()\n            wholes = [torch.empty_like(grad) for _ in range(size)]\n"
                "            dist.all_gather(wholes, grad.contiguous())\n"
                "            return torch.cat(wholes).t().chunk(size)[dist.get_rank()]\n",
            ),
        ),
    ),
    (
        "sends nothing that is counted",
        "Where does the rest come from?",
        EVERYONES
        + """class Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, word):
        ctx.word = word
        whole = torch.cat(everyones(rows.detach(), word))
        return whole.t().chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, grad):
        return Transpose.apply(grad, ctx.word + "'"), None


def transpose(rows):
    return Transpose.apply(rows, "a")
""",
    ),
]  # fmt: skip

NOTHING = [("rows.T", "\ndef transpose(rows):\n    return rows.T\n")]

ACCEPTED = [
    (
        "only the exchange has a backward of its own",
        """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blocks):
        received = torch.empty_like(blocks)
        dist.all_to_all_single(received, blocks.contiguous())
        return received

    @staticmethod
    def backward(ctx, grad):
        back = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(back, grad.contiguous())
        return back


def transpose(rows):
    size = dist.get_world_size()
    m, n = rows.shape
    received = Exchange.apply(rows.view(m, size, n // size).permute(1, 2, 0).contiguous())
    return received.permute(1, 0, 2).reshape(n // size, size * m)
""",
    ),
    (
        "send and receive",
        """
class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        rank, size = dist.get_rank(), dist.get_world_size()
        blocks = [block.t().contiguous() for block in rows.chunk(size, dim=1)]
        came = [torch.empty_like(block) for block in blocks]
        came[rank] = blocks[rank]
        others = [r for r in range(size) if r != rank]
        work = [dist.irecv(came[r], r) for r in others] + [dist.isend(blocks[r], r) for r in others]
        for one in work:
            one.wait()
        return torch.cat(came, dim=1)

    @staticmethod
    def backward(ctx, grad):
        return Swap.apply(grad)


def transpose(rows):
    return Swap.apply(rows)
""",
    ),
    (
        "one scatter from each rank, transposed on arrival",
        (
            (
                "            received = torch.empty_like(blocks)\n            dist.all_to_all_single(received, blocks)\n",
                "            received = [torch.empty_like(blocks[0]) for _ in range(size)]\n"
                "            for source in range(size):\n"
                "                mine = list(blocks) if source == dist.get_rank() else None\n"
                "                dist.scatter(received[source], mine, src=source)\n",
            ),
        ),
    ),
]
