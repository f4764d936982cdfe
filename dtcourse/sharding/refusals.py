"""What sharding refuses with the type of error that PyTorch's fully_shard raises for it, as well as with its own."""

from __future__ import annotations


class ShardedTwice(ValueError, AssertionError):
    """A module was sharded a second time."""


class NotCopied(RuntimeError, AssertionError):
    """A sharded model was to be copied by copy.deepcopy."""
