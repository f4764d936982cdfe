"""Answers to swiglu_in_halves: see test_exercises.py."""

_DX = "return da @ w1 + db @ w3, [x, dy, a * gate * b, da, db]"
_DW = "return da.T @ x, db.T @ x, dy.T @ h"

MUTANTS = [
    (
        "the derivative of silu without its second term",
        "silu(a) = a sigmoid(a) has two factors",
        ((" * (1 + a * (1 - gate))", ""),),
    ),
    (
        "x goes into one product only",
        "x goes into both products",
        (("da @ w1 + db @ w3", "da @ w1"),),
    ),
    (
        "gate and value exchanged in backward",
        "Write the chain rule out",
        (("x, a, b = kept", "x, b, a = kept"),),
    ),
    (
        "gradients of w1 and w3 exchanged",
        "the gradient of w1",
        ((_DW, "return db.T @ x, da.T @ x, dy.T @ h"),),
    ),
    (
        "weights' gradients made with the input's",
        "computed in the wrong half",
        (
            (_DX, "return da @ w1 + db @ w3, [da.T @ x, db.T @ x, dy.T @ (a * gate * b)]"),
            ("    x, dy, h, da, db = kept\n", ""),
            (_DW, "return tuple(kept)"),
        ),
    ),
    (
        "the forward's products once more",
        "or twice",
        (
            ("@ w2.T, [x, a, b]", "@ w2.T, [x]"),
            ("    x, a, b = kept\n", "    (x,) = kept\n    a, b = x @ w1.T, x @ w3.T\n"),
        ),
    ),
    (
        "dh once more in the weights' half",
        "or twice",
        (
            (_DX, "return da @ w1 + db @ w3, [x, dy, a, b, w2]"),
            (
                "    x, dy, h, da, db = kept\n",
                "    x, dy, a, b, w2 = kept\n    gate, dh = torch.sigmoid(a), dy @ w2\n"
                "    h, db = a * gate * b, dh * a * gate\n    da = dh * b * gate * (1 + a * (1 - gate))\n",
            ),
        ),
    ),
    (
        "the hidden product kept as well",
        "made again without a product",
        (
            ("@ w2.T, [x, a, b]", "@ w2.T, [x, a, b, F.silu(a) * b]"),
            ("x, a, b = kept", "x, a, b, _ = kept"),
        ),
    ),
    (
        "all intermediate results kept",
        "numbers are kept",
        (
            ("a * gate * b, da, db]", "a * gate * b, da, db, a, b]"),
            ("x, dy, h, da, db = kept", "x, dy, h, da, db, *_ = kept"),
        ),
    ),
    (
        "autograd",
        "torch.autograd",
        """
import torch
import torch.nn.functional as F


def swiglu_forward(x, w1, w3, w2):
    return (F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T, [x]


def swiglu_backward_input(dy, kept, w1, w3, w2):
    given = [one.detach().requires_grad_() for one in (*kept, w1, w3, w2)]
    x, v1, v3, v2 = given
    dx, *rest = torch.autograd.grad((F.silu(x @ v1.T) * (x @ v3.T)) @ v2.T, given, dy)
    return dx, rest


def swiglu_backward_weight(kept):
    return kept
""",
    ),
]

ACCEPTED = [
    (
        "the gate kept, and the hidden product made from it",
        (
            ("    a, b = x @ w1.T, x @ w3.T\n", "    a, b = F.linear(x, w1), F.linear(x, w3)\n"),
            ("dh = dy @ w2\n", "dh = torch.mm(dy, w2)\n"),
        ),
    ),
    (
        "silu and its derivative by other words",
        (
            (
                "da = dh * b * gate * (1 + a * (1 - gate))",
                "da = dh * b * (gate + a * gate * (1 - gate))",
            ),
            ("db = dh * a * gate", "db = dh * F.silu(a)"),
            ("return da @ w1 + db @ w3", "return torch.addmm(da @ w1, db, w3)"),
        ),
    ),
    (
        "both first weights' gradients in one product",
        (
            ("a * gate * b, da, db]", "a * gate * b, torch.cat([da, db], 1)]"),
            ("x, dy, h, da, db = kept", "x, dy, h, dab = kept"),
            (_DW, "dw1, dw3 = (dab.T @ x).chunk(2)\n    return dw1, dw3, dy.T @ h"),
        ),
    ),
]

NOTHING = [
    (
        "zeros",
        """
import torch


def swiglu_forward(x, w1, w3, w2):
    return torch.zeros_like(x), []


def swiglu_backward_input(dy, kept, w1, w3, w2):
    return torch.zeros_like(dy), [w1, w3, w2]


def swiglu_backward_weight(kept):
    return [torch.zeros_like(w) for w in kept]
""",
    ),
]
