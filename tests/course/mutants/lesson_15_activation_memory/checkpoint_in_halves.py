"""Answers to checkpoint_in_halves: see test_exercises.py."""

_BEGIN = "    torch.set_rng_state(state)\n"
_AFTER = "        torch.set_rng_state(now)\n"
_MIDDLE = "middle, torch.get_rng_state(), grad)"

# Segments of equally many layers, each in a checkpoint of its own that keeps the random state.
SEGMENTS = """
def run_chain(layers, x):
    size = {size}
    for start in range(0, len(layers), size):
        x = Segment.apply(layers[start : start + size], torch.empty(0, requires_grad=True), x)
    return x


class Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, dummy, x):
        ctx.layers, ctx.state = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        y = x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            for layer in ctx.layers:
                y = layer(y)
        torch.set_rng_state(now)
        y.backward(grad)
        return None, None, x.grad if ctx.needs_input_grad[2] else None
"""

MUTANTS = [
    ("other masks in the second run", "Which random numbers does each layer draw", ((_BEGIN, ""),)),
    (
        "each half begins with the chain's random numbers",
        "Which random numbers does each layer draw",
        ((_MIDDLE, "middle, state, grad)"),),
    ),
    (
        "leaves the generator where the second run put it",
        "the generator was left where",
        ((_AFTER, ""),),
    ),
    (
        "autograd is on while the middle is looked for",
        "do a layer's activations go before",
        (
            (
                "    with torch.no_grad():\n        middle",
                "    with torch.enable_grad():\n        middle",
            ),
        ),
    ),
    (
        "a batch is left out of the graph",
        "autograd leaves an operation out none of",
        (("torch.empty(0, requires_grad=True)", "torch.empty(0)"),),
    ),
    (
        "gradients of the input alone",
        "which backward gives them theirs",
        (
            (
                "        y.backward(grad)\n        return x.grad\n",
                "        return torch.autograd.grad(y, x, grad)[0]\n",
            ),
        ),
    ),
    (
        "the first half alone goes backward",
        "which backward gives them theirs",
        (
            (
                "    grad = backward_through(layers[half:], middle, torch.get_rng_state(), grad)\n",
                "",
            ),
        ),
    ),
    ("the square-root rule", "Which inputs does a half need", SEGMENTS.format(size=8)),
    ("a checkpoint per layer", "Which inputs does a half need", SEGMENTS.format(size=1)),
    (
        "one checkpoint for all",
        "do a layer's activations go before",
        SEGMENTS.format(size="len(layers)"),
    ),
    (
        "each layer's input from the very first one",
        "from the nearest one that is kept",
        (
            (
                "        grad = backward_through(ctx.layers, ctx.saved_tensors[0], ctx.state, grad)\n",
                "        for last in range(len(ctx.layers) - 1, -1, -1):\n"
                "            torch.set_rng_state(ctx.state)\n"
                "            x = plainly(ctx.layers[:last], ctx.saved_tensors[0])\n"
                "            grad = backward_through([ctx.layers[last]], x, torch.get_rng_state(), grad)\n"
                "            del x\n",
            ),
        ),
    ),
    (
        "the lesson's checkpoint around everything",
        "Which random numbers does each layer draw",
        """
def run_chain(layers, x):
    def chain(x):
        for layer in layers:
            x = layer(x)
        return x

    return MyCheckpoint.apply(chain, x)


class MyCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad_y):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(grad_y)
        return None, x.grad
""",
    ),
]

NOTHING = [
    (
        "everything is kept",
        """
def run_chain(layers, x):
    for layer in layers:
        x = layer(x)
    return x
""",
    ),
    (
        "PyTorch's own",
        """
import torch.utils.checkpoint


def run_chain(layers, x):
    return torch.utils.checkpoint.checkpoint_sequential(layers, 8, x, use_reentrant=False)
""",
    ),
    (
        "PyTorch's own in halves, by another name",
        """
from torch import utils as helpers


def run_chain(layers, x):
    run = getattr(helpers, "checkpoint").checkpoint
    if len(layers) == 1:
        return run(layers[0], x, use_reentrant=False)
    half = len(layers) // 2
    middle = run(run_chain, layers[:half], x, use_reentrant=False)
    return run(run_chain, layers[half:], middle, use_reentrant=False)
""",
    ),
    (
        "PyTorch's own in halves, by the name that another module of PyTorch gives it",
        """
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper


def run_chain(layers, x):
    run = wrapper.torch_utils_checkpoint
    if len(layers) == 1:
        return run(layers[0], x, use_reentrant=False)
    half = len(layers) // 2
    middle = run(run_chain, layers[:half], x, use_reentrant=False)
    return run(run_chain, layers[half:], middle, use_reentrant=False)
""",
    ),
    (
        "PyTorch's own in halves, out of a string",
        """
import pkgutil


def run_chain(layers, x):
    run = pkgutil.resolve_name(".".join(["torch", "utils", "checkpoint"]) + ":checkpoint")
    if len(layers) == 1:
        return run(layers[0], x, use_reentrant=False)
    half = len(layers) // 2
    middle = run(run_chain, layers[:half], x, use_reentrant=False)
    return run(run_chain, layers[half:], middle, use_reentrant=False)
""",
    ),
    (
        "the course's own",
        """
from dtcourse.memory.checkpointing import checkpoint_sequential


def run_chain(layers, x):
    return checkpoint_sequential(layers, 8, x)
""",
    ),
]

ACCEPTED = [
    (
        "a stack of inputs, without recursion",
        """
def run_chain(layers, x):
    return Stacked.apply(layers, torch.zeros(1, requires_grad=True), x)


class Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, dummy, x):
        ctx.layers, ctx.begin = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        with torch.random.fork_rng(devices=[]):
            kept = [(0, ctx.saved_tensors[0], ctx.begin)]
            for last in range(len(ctx.layers) - 1, -1, -1):
                start, x, state = kept[-1]
                while start < last:
                    torch.set_rng_state(state)
                    middle = (start + last + 1) // 2
                    for layer in ctx.layers[start:middle]:
                        x = layer(x)
                    start, state = middle, torch.get_rng_state()
                    kept.append((start, x, state))
                kept.pop()
                torch.set_rng_state(state)
                x = x.detach().requires_grad_()
                with torch.enable_grad():
                    y = ctx.layers[last](x)
                y.backward(grad)
                grad = x.grad
                del x, y
        return None, None, grad if ctx.needs_input_grad[2] else None
""",
    ),
    (
        "thirds, with autograd.grad",
        """
def run_chain(layers, x):
    return Thirds.apply(layers, torch.zeros(1, requires_grad=True), x)


def through(layers, x, state, grad):
    torch.set_rng_state(state)
    if len(layers) == 1:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(layers[0](x), grad)
        return x.grad
    size = -(-len(layers) // 3)
    starts = [(x, state)]
    for start in range(0, len(layers) - size, size):
        h = starts[-1][0]
        for layer in layers[start : start + size]:
            h = layer(h)
        starts.append((h, torch.get_rng_state()))
        del h
    for number in range(len(starts) - 1, -1, -1):
        grad = through(layers[number * size : (number + 1) * size], *starts.pop(), grad)
    return grad


class Thirds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, dummy, x):
        ctx.layers, ctx.state = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        now = torch.get_rng_state()
        grad = through(ctx.layers, ctx.saved_tensors[0], ctx.state, grad)
        torch.set_rng_state(now)
        return None, None, grad if ctx.needs_input_grad[2] else None
""",
    ),
]
