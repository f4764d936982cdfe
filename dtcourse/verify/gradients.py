"""Compares gradients parameter by parameter, and says what a difference looks like.

SGD shows a scale error at once; Adam, which divides by the gradient's own size, hides it. So techniques are compared
by their gradients, never by "a similar loss".
"""

from __future__ import annotations

import math

import torch
from torch import nn

Gradients = dict[str, torch.Tensor | None]


class NotEqual(AssertionError):
    """Two sets of gradients differ. The message names the worst parameter, the first of several,
    and what the difference looks like.
    """


def gradients_of(model: nn.Module) -> Gradients:
    """Copies of all gradients by name, None where there is none. Tied parameters appear once."""
    return {
        n: None if p.grad is None else p.grad.detach().clone() for n, p in model.named_parameters()
    }


def compare(
    got: Gradients,
    expected: Gradients,
    tolerance: float = 1e-5,
    what: str = "gradient",
    norm: float = math.inf,
) -> float:
    """Returns the largest relative error; raises NotEqual where it is above `tolerance`.

    The error of a parameter is |got - expected| / |expected|, with 1e-8 added below, so it has no unit; |x| is the
    largest number in x, or, with norm=2, the 2-norm.
    Missing and unexpected parameters are errors too.
    """
    if got.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
        raise NotEqual(f"other parameters than expected: missing {missing}, unexpected {extra}")
    errors: dict[str, float] = {}
    for name, right in expected.items():
        mine = got[name]
        if (mine is None) != (right is None):
            have, want = ("no", "one") if mine is None else ("a", "none")
            raise NotEqual(f"{name} has {have} {what}, and should have {want}")
        if mine is None or right is None:
            continue
        if mine.shape != right.shape:
            raise NotEqual(
                f"{name}: the {what} has shape {tuple(mine.shape)}, not {tuple(right.shape)}"
            )
        error = relative_error(mine, right, norm)
        errors[name] = math.inf if math.isnan(error) else error
    worst = max(errors.values(), default=0.0)
    if not worst <= tolerance:
        # A mistake in the scale is as large in all of them, up to rounding, which is not the same on every machine.
        worst_name = next(name for name, error in errors.items() if error >= 0.999 * worst)
        mine, right = got[worst_name], expected[worst_name]
        assert mine is not None, "it has an error"
        assert right is not None, "it has an error"
        raise NotEqual(
            f"{worst_name}: the {what} is off by {relative_error(mine, right, norm):.1e} (relative; at most "
            f"{tolerance:.0e} is rounding). " + looks_like(mine, right, split=True)
        )
    return worst


def require_close(
    got: torch.Tensor | None,
    expected: torch.Tensor,
    where: str,
    tolerance: float = 1e-6,
    hint: str = "",
    split: bool = False,
) -> None:
    """Raises NotEqual where one tensor is not the other up to rounding, with what the difference looks like.

    where:     what is compared, the beginning of the sentence: "on rank 1, the gradient of layer.weight"
    tolerance: of max|got - expected| / max|expected|
    hint:      a sentence more, or a question that leads on
    split:     whether it is put together from parts of a batch, of several ranks or micro-batches
    """
    if got is None:
        raise NotEqual(f"{where}: there is none. {hint}".rstrip())
    if got.shape != expected.shape:
        shapes = f"{tuple(got.shape)}, not {tuple(expected.shape)}"
        raise NotEqual(f"{where}: its shape is {shapes}. {hint}".rstrip())
    error = relative_error(got, expected)
    if not error <= tolerance:  # NaN is no number that is close
        looks = looks_like(got, expected, split)
        raise NotEqual(f"{where} is off by {error:.1e} of its size. {looks} {hint}".rstrip())


def relative_error(got: torch.Tensor, expected: torch.Tensor, norm: float = math.inf) -> float:
    """max|got - expected| / max|expected|; both may be of any dtype and are compared in double precision.

    norm: 2 for the 2-norm instead of the largest number
    """
    if expected.numel() == 0:
        return 0.0
    got, expected = got.double(), expected.double()
    error, size = (torch.linalg.vector_norm(x, norm) for x in (got - expected, expected))
    return float(error / (size + 1e-8))


def looks_like(got: torch.Tensor, expected: torch.Tensor, split: bool = False) -> str:
    """A sentence on what kind of mistake turns `expected` into `got`.

    split: whether a batch was divided, among ranks or micro-batches: else none of them is the cause
    """
    got, expected = got.detach(), expected.detach()
    rounded, shifted = _rounded_to(got, expected), _is_shifted(got, expected)
    got, expected = got.double().flatten(), expected.double().flatten()
    if not torch.isfinite(got).all():
        return "It holds values that are not finite."
    if not got.any():
        return "It is zero: nothing was added to it."
    if rounded:
        return (
            f"That is the rounding of {rounded}: the values are right, and on their way pass through fewer digits "
            "than they came with."
        )
    scale = float(got @ expected / (expected @ expected).clamp_min(1e-30))
    # A factor explains the difference where little is left of it without that factor.
    left, error = relative_error(got, expected * scale), relative_error(got, expected)
    if left < 1e-3 and left < 0.1 * error and scale != 0:
        return _factor(scale, split)
    if shifted:
        return "Each row is off by the same vector: look for a bias that is added more than once, or not at all."
    if not split:
        return "No factor explains the difference."
    return "It points elsewhere: part of the batch is missing, counted twice, or another rank's values are in it."


def _factor(scale: float, split: bool) -> str:
    """What is said of a tensor that is the right one but for this factor."""
    if scale < 0:
        return f"It is the right one times {scale:.3g}: is a sign turned?"
    if abs(scale - 1) < 0.01:  # "1 times" says nothing
        size = "large" if scale > 1 else "small"
        percent = f"{100 * abs(scale - 1):.2g} %"
        return f"It is the right one, {percent} too {size} throughout: is it divided by a number that is off?"
    factor, size = (scale, "large") if scale > 1 else (1 / scale, "small")
    said = f"It is the right one, {factor:.3g} times too {size}: "
    if split:
        return f"{said}look for a sum where the mean belongs, or a mean taken twice (ranks, micro-batches)."
    return said + (
        "look for a sum where the mean belongs, or one counted twice."
        if scale > 1
        else "look for a mean where the sum belongs, or one taken twice."
    )


def _is_shifted(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether one vector, added to each row, explains the whole difference."""
    if expected.dim() < 2 or expected.numel() < 3 * expected.shape[-1]:
        return False
    off = (got.double() - expected.double()).flatten(0, -2)
    return relative_error(off, off.mean(0).expand_as(off)) < 1e-3


def _rounded_to(got: torch.Tensor, expected: torch.Tensor) -> str:
    """The dtype with fewer digits that explains the whole difference, such as "float32": "" where none does."""
    if not expected.is_floating_point():
        return ""
    error, has = relative_error(got, expected), torch.finfo(expected.dtype).eps
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        eps = torch.finfo(dtype).eps
        if eps <= has or not error <= 2 * eps:
            continue
        # float32 is seven digits, which no other mistake leaves; two or three digits prove nothing, unless each
        # number is one that the dtype has.
        if dtype == torch.float32 or torch.equal(got.to(dtype).to(got.dtype), got):
            return str(dtype).removeprefix("torch.")
    return ""
