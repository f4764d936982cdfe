"""Answers to checkpoint_with_random_state: see test_exercises.py."""

MUTANTS = [
    (
        "another dropout mask in the recompute",
        "Which random numbers does the second run draw",
        """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
    ),
    (
        "leaves the generator where the second run put it",
        "generator was left where",
        """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
    ),
    (
        "keeps everything",
        "Does autograd watch the first run",
        """
def my_checkpoint(function, *inputs):
    return function(*inputs)
""",
    ),
    (
        "the first block is left out of the graph",
        "first block of a network",
        """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        out.backward(grad)
        return None, None, *(x.grad for x in inputs)
""",
    ),
    (
        "gradients of the inputs alone",
        "where do their gradients come from",
        """
def my_checkpoint(function, *inputs):
    '''function(*inputs), with its activations recomputed in backward. inputs: floating-point tensors.'''
    # Without an input that requires a gradient, autograd would leave the whole operation out.
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *inputs)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, dummy, *inputs):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        inputs = [x.detach().requires_grad_(needed) for x, needed in pairs]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(now)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad) if wanted else [])
        return None, None, *(next(found) if x.requires_grad else None for x in inputs)
""",
    ),
]

NOTHING = [
    (
        "calls the function",
        """
def my_checkpoint(function, *inputs):
    return function(*inputs)
""",
    ),
    (
        "PyTorch's own",
        """
import torch.utils.checkpoint


def my_checkpoint(function, *inputs):
    return torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)
""",
    ),
    (
        "PyTorch's own, by another name",
        """
from torch import utils as helpers


def my_checkpoint(function, *inputs):
    run = getattr(helpers, 'checkpoint').checkpoint
    return run(function, *inputs, use_reentrant=False)
""",
    ),
]

ACCEPTED = [
    (
        "the random state forked",
        (
            (
                "        now = torch.get_rng_state()\n        torch.set_rng_state(ctx.random_state)\n"
                "        with torch.enable_grad():\n            out = ctx.function(*inputs)\n"
                "        torch.set_rng_state(now)\n",
                "        with torch.random.fork_rng(devices=[]), torch.enable_grad():\n"
                "            torch.set_rng_state(ctx.random_state)\n"
                "            out = ctx.function(*inputs)\n",
            ),
        ),
    ),
    (
        "hooks on what is saved, which run it again when the first of it is asked for",
        """
def my_checkpoint(function, *inputs):
    state, count, again = torch.get_rng_state(), [], []

    def pack(tensor):
        count.append(None)
        return len(count) - 1

    def unpack(number):
        if not again:
            def keep(tensor):
                again.append(tensor.detach())
            copies = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), hooks:
                torch.set_rng_state(state)
                function(*copies)
        return again[number]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(*inputs)
""",
    ),
]
