"""Answers to fused_swiglu: see test_exercises.py."""

_MINE = "    mine = torch.cat([gate.chunk(size)[rank], up.chunk(size)[rank]])\n"
_SUM = "            y = y.clone()\n            dist.all_reduce(y)\n            return y\n"
_BACK = "            dx = dx.clone()\n            dist.all_reduce(dx)\n            return dx\n"
_INSIDE = "    gate, up = (Enter.apply(x) @ w_in.T).chunk(2, dim=-1)\n"

MUTANTS = [
    (
        "the lesson's cut: bands of the fused matrix",
        "the rows of gate and the rows of up that belong together",
        ((_MINE, "    mine = w_in.chunk(size)[rank]\n"),),
    ),
    (
        "up of the neighbour",
        "the rows of gate and the rows of up that belong together",
        (("up.chunk(size)[rank]", "up.chunk(size)[rank - 1]"),),
    ),
    (
        "w_out by its other dim",
        "Which of its dims is the hidden width",
        (("w_out.chunk(size, dim=1)[rank]", "w_out.chunk(size, dim=0)[rank]"),),
    ),
    (
        "every rank has all of it",
        "a p-th of",
        (
            (_MINE, "    mine = w_in\n"),
            ("w_out.chunk(size, dim=1)[rank]", "w_out / size"),
        ),
    ),
    (
        "no sum in forward",
        "a part of the sum, or all of it",
        ((_SUM, "            return y.clone()\n"),),
    ),
    (
        "a mean in forward",
        "a part of the sum, or all of it",
        ((_SUM, _SUM.replace("return y", "return y / dist.get_world_size()")),),
    ),
    (
        "no sum in backward",
        "its gradient is a sum over ranks",
        ((_BACK, "            return dx.clone()\n"),),
    ),
    (
        "the sum is summed again in backward",
        "counts once",
        (
            (
                "            return dy\n",
                "            dy = dy.clone()\n            dist.all_reduce(dy)\n            return dy\n",
            ),
        ),
    ),
    (
        "gate and up send a gradient of x each",
        "how many gradients of x does a rank add up before it sends",
        (
            (
                _INSIDE,
                "    top, bottom = w_in.chunk(2)\n"
                "    gate, up = Enter.apply(x) @ top.T, Enter.apply(x) @ bottom.T\n",
            ),
        ),
    ),
    (
        "x enters as it is",
        "does your sum have a backward of its own",
        ((_INSIDE, "    gate, up = (x @ w_in.T).chunk(2, dim=-1)\n"),),
    ),
    (
        "PyTorch's collectives with a backward",
        "asks you to write that yourself",
        (
            (
                "    return Leave.apply((F.silu(gate) * up) @ w_out.T)\n",
                "    return torch.distributed.nn.all_reduce((F.silu(gate) * up) @ w_out.T)\n",
            ),
        ),
    ),
    (
        "the course's mapping",
        "asks you to write that yourself",
        (
            (
                _INSIDE,
                "    from dtcourse.tensor_parallel import mappings\n\n"
                "    gate, up = (mappings.copy(x) @ w_in.T).chunk(2, dim=-1)\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "the whole weights on every rank, and no message",
        """
import torch
import torch.nn.functional as F


def cut_swiglu(w_in, w_out, rank, size):
    return w_in, w_out


def swiglu_region(x, w_in, w_out):
    gate, up = (x @ w_in.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w_out.T
""",
    ),
    (
        "nothing but zeros",
        """
def cut_swiglu(w_in, w_out, rank, size):
    return w_in[: len(w_in) // size] * 0, w_out[:, : w_out.shape[1] // size] * 0


def swiglu_region(x, w_in, w_out):
    return x * 0 * w_in.sum() * w_out.sum()
""",
    ),
]

ACCEPTED = [
    (
        "every p-th hidden number",
        (
            (_MINE, "    mine = torch.cat([gate[rank::size], up[rank::size]])\n"),
            ("w_out.chunk(size, dim=1)[rank]", "w_out[:, rank::size].contiguous()"),
        ),
    ),
    (
        "a hook in place of a function",
        (
            (
                _INSIDE,
                "    def summed(dx):\n"
                "        dx = dx.clone()\n"
                "        dist.all_reduce(dx)\n"
                "        return dx\n\n"
                "    x = x.view_as(x)\n"
                "    x.register_hook(summed)\n"
                "    gate, up = (x @ w_in.T).chunk(2, dim=-1)\n",
            ),
        ),
    ),
]
