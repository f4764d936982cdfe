"""Answers to kept_bytes: see test_exercises.py."""

from tests.course.edits import edited

_KEPT = """
def kept_bytes(batch, sequence, width, heads, kv_heads, hidden):
    tokens, kv = batch * sequence, kv_heads * width // heads
    norms = 2 * (width + 2)
    attention = 2 * width + 2 * kv + heads + width
    mlp = width + 4 * hidden
    return 4 * tokens * (norms + attention + mlp)
"""

MUTANTS = [
    (
        "forgets that silu's output is a factor",
        "both of its factors",
        edited(_KEPT, ("4 * hidden", "3 * hidden")),
    ),
    (
        "keeps the input once for each of query, key and value",
        "How often is it there",
        edited(_KEPT, ("attention = 2 * width", "attention = 4 * width")),
    ),
    (
        "repeats keys and values for every head",
        "how wide are keys and values",
        edited(_KEPT, ("2 * kv", "2 * width")),
    ),
    (
        "forgets the log-sum-exp",
        "one number for each query",
        edited(_KEPT, (" + heads", "")),
    ),
    (
        "forgets the norms' statistics",
        "its mean and its scale",
        edited(_KEPT, ("2 * (width + 2)", "2 * width")),
    ),
    (
        "counts in floats",
        "whole number of bytes",
        edited(_KEPT, ("return 4 * tokens", "return 4.0 * tokens")),
    ),
]

NOTHING = [
    (
        "the weights",
        """
def kept_bytes(batch, sequence, width, heads, kv_heads, hidden):
    return 4 * batch * sequence * width
""",
    ),
]

ACCEPTED = [
    (
        "tensor by tensor",
        """
def kept_bytes(batch, sequence, width, heads, kv_heads, hidden):
    head = width // heads
    one_token = {
        "norm 1": width + 2, "a": width, "q": heads * head, "k and v": 2 * kv_heads * head,
        "log-sum-exp": heads, "attended": width, "norm 2": width + 2, "a again": width,
        "gate": hidden, "silu": hidden, "up": hidden, "product": hidden,
    }
    return sum(one_token.values()) * batch * sequence * 4
""",
    ),
    (
        "sixteen bytes for a token's hidden number, and so on",
        """
def kept_bytes(batch, sequence, width, heads, kv_heads, hidden):
    wide = 24 * width + 16 * hidden + 8 * width * kv_heads // heads + 4 * heads + 16
    return torch.tensor([batch, sequence, wide]).prod()
""",
    ),
]
