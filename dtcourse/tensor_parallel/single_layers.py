"""The styles of one layer, with PyTorch's names and keywords: by columns, by rows, and on a rank's own tokens.

    plan = {"norm": SequenceParallel(),                                # (B, S/p, D) -> (B, S/p, D)
            "up": ColwiseParallel(input_layouts=Shard(1)),             # all-gather, and a reduce-scatter in backward
            "down": RowwiseParallel(output_layouts=Shard(1))}          # reduce-scatter, and an all-gather in backward

Between regions each rank has its own tokens, for the bytes of the two all-reduces of a region that is whole outside:
4 (p - 1)/p n for n bytes of activations. What is gathered for `up` is kept for backward. Every rank needs equally many
tokens. sequence_parallel.parallelize_sequence does this for the course's Transformer, with one gather for q, k and v,
and gathers again instead of keeping. Source: Korthikanti et al. 2205.05198, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dtcourse.parameters.partial_gradients import sum_gradients
from dtcourse.parameters.replicas import Group
from dtcourse.plural import plural
from dtcourse.tensor_parallel.embedding import (
    ColumnParallelEmbedding,
    VocabParallelEmbedding,
    require_plain,
)
from dtcourse.tensor_parallel.laid_out import (
    LaidOutColumnLinear,
    LaidOutRowLinear,
    lay_out_embedding,
)
from dtcourse.tensor_parallel.layouts import no_partial, only_local, only_sums
from dtcourse.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from dtcourse.tensor_parallel.random_state import SplitDropout
from dtcourse.tensor_parallel.shards import require_divides
from dtcourse.tensor_parallel.styles import COLUMNS, ROWS, linear_of, require

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

ON_OWN_TOKENS = (nn.LayerNorm, nn.RMSNorm, nn.Dropout)


@dataclass(frozen=True, kw_only=True)
class _OneLayer:
    """What PyTorch's styles of a layer are given. use_local_output: True; False gives DTensors, which are not taken."""

    input_layouts: Placement | None = None
    output_layouts: Placement | None = None
    use_local_output: bool = True

    def __post_init__(self) -> None:
        no_partial(self.output_layouts, "output_layouts")
        only_sums(self.input_layouts)
        only_local(self.use_local_output)

    @property
    def layouts(self) -> tuple[Placement | None, Placement | None]:
        """Of the input and of the output."""
        return self.input_layouts, self.output_layouts

    def _in_other_words(self, given: bool, said: str) -> None:
        """Raises ValueError where our word for a layout is `given` beside layouts. said: both ways to say it."""
        if given and self.layouts != (None, None):
            raise ValueError(f"{said}: beside input_layouts or output_layouts, say that")


@dataclass(frozen=True)
class ColwiseParallel(_OneLayer):
    """A linear layer, by its outputs, or an embedding, by the columns of its table.

    gather_output:  all ranks get all of them: PyTorch's output_layouts=Replicate()
    input_layouts:  what each rank has of the input; None: Replicate()
    output_layouts: what each is to have of the output; None: Shard(-1)
    """

    gather_output: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_other_words(self.gather_output, "gather_output=True is output_layouts=Replicate()")

    def check(self, module: nn.Module, name: str, size: int) -> None:
        require(module, name, (nn.Linear, nn.Embedding), "ColwiseParallel")
        if isinstance(module, nn.Embedding):
            require_plain(module, by="columns")

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return COLUMNS if isinstance(module, nn.Linear) else {"weight": 1}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        if isinstance(module, nn.Embedding):
            cut = ColumnParallelEmbedding(module, group, self.gather_output)
            return lay_out_embedding(cut, *self.layouts)
        if self.layouts == (None, None):
            return ColumnParallelLinear(linear_of(module), group, self.gather_output)
        return LaidOutColumnLinear(linear_of(module), group).between(*self.layouts)


@dataclass(frozen=True)
class RowwiseParallel(_OneLayer):
    """A linear layer, by its inputs, or an embedding, by the rows of its table.

    input_is_parallel: False: the linear layer's input is replicated, and each rank takes its slice: PyTorch's
                       input_layouts=Replicate()
    input_layouts:     what each rank has of the input; None: Shard(-1), of an embedding Replicate()
    output_layouts:    what each is to have of the output; None: Replicate()
    """

    input_is_parallel: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_other_words(
            not self.input_is_parallel, "input_is_parallel=False is input_layouts=Replicate()"
        )

    def check(self, module: nn.Module, name: str, size: int) -> None:
        require(module, name, (nn.Linear, nn.Embedding), "RowwiseParallel")
        if isinstance(module, nn.Linear):
            require_divides(module.in_features, size, f"the inputs of {name}")
        elif isinstance(module, nn.Embedding):
            require_plain(module)

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return ROWS if isinstance(module, nn.Linear) else {"weight": 0}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        if isinstance(module, nn.Embedding):
            return lay_out_embedding(VocabParallelEmbedding(module, group), *self.layouts)
        if self.layouts == (None, None):
            return RowParallelLinear(linear_of(module), group, self.input_is_parallel)
        return LaidOutRowLinear(linear_of(module), group).between(*self.layouts)


@dataclass(frozen=True)
class SequenceParallel:
    """A norm or a dropout on a rank's own tokens: x (B, S/p, D) -> (B, S/p, D). Its parameters stay whole.

    sequence_dim:     the dim along which x is cut
    use_local_output: True; PyTorch's default gives DTensors, which modules here do not take

    Each rank's tokens give a part of the parameters' gradients: summed over the ranks in backward, (D,) each. A dropout
    draws other masks on each rank. A class of your own (an RMSNorm) is taken at its word: token by token.
    """

    sequence_dim: int = field(default=1, kw_only=True)
    use_local_output: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        only_local(self.use_local_output)

    def check(self, module: nn.Module, name: str, size: int) -> None:
        if type(module).__module__.startswith("torch.nn."):
            require(module, name, ON_OWN_TOKENS, "SequenceParallel")

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return {}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        if isinstance(module, nn.Dropout):
            return SplitDropout(module, group)
        dim = self.sequence_dim

        def each_token_by_itself(module: nn.Module, args: Any, keywords: dict[str, Any]) -> None:
            shape = getattr(module, "normalized_shape", ())
            over = (
                1 if isinstance(shape, int) else len(shape)
            )  # of a class of one's own, 8 for (8,)
            for x in (*args, *keywords.values()):
                if over and isinstance(x, Tensor) and dim % x.dim() >= x.dim() - over:
                    dims = plural(over, "dim")
                    raise ValueError(
                        f"a norm over the last {dims} of an input of shape {tuple(x.shape)} is over dim {dim} as well, "
                        "of which each rank has a part: norm the last dim alone, or leave this one out of the plan"
                    )
                break

        module.register_forward_pre_hook(each_token_by_itself, with_kwargs=True)
        sum_gradients(module.parameters(), group, of=module)
        return module
