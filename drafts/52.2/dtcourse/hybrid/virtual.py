"""A training step of hybrid's on one rank of thousands: traced, by stages, without the others.

    config = HybridConfig(pp=4, dp_replicate=2, dp_shard=8, cp=2, tp=8, micro_batches=8)       # 1,024 ranks
    stages = trace_stages(lambda: Transformer(shape), config, samples=8)
    max(stage.peak_bytes for stage in stages), stages[0].traffic.by_axis()

What runs is parallelize and HybridTraining.step themselves, and the same function (`second_step`) runs on real ranks,
so that tests/virtual holds the two to each other at 4 and 8. Ranks of one stage do alike, so one of each stage is
traced. A stage after the first waits for activations: their shapes are given (`Activations`), and what each stage
announces to the next is held against them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from dtcourse.collectives import decisions
from dtcourse.collectives.decisions import Answers
from dtcourse.hybrid.config import HybridConfig
from dtcourse.hybrid.parallelize import parallelize
from dtcourse.hybrid.training import HybridTraining
from dtcourse.pipeline_parallel.actions import FORWARD
from dtcourse.pipeline_parallel.headers import Form
from dtcourse.pipeline_parallel.posting import Message
from dtcourse.simulator.virtual_cluster import Measured, measure, run_rank

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Activations:
    """What stages pass on, by message: (samples, tokens, width) of a micro-batch; with rotary positions those, too; and
    from the first stage with a gate on the sum of the gates' losses.

    shape: the model's config;  dtype: of its weights;  first_loss: the first stage with a gate, or None
    samples, length: of a rank's batch, before anything is cut
    """

    def __init__(
        self,
        config: HybridConfig,
        shape: Any,
        dtype: torch.dtype,
        first_loss: int | None,
        samples: int,
        length: int,
    ) -> None:
        self.config, self.shape, self.dtype, self.first_loss = config, shape, dtype, first_loss
        self.samples, self.tokens = samples, length // config.cp  # of a rank

    def __call__(self, message: Message) -> list[Form]:
        """The forms of a forward's message, in order."""
        each, more = divmod(self.samples, self.config.micro_batches)
        rows = each + (message.made.micro_batch < more)
        kept = self.tokens // (self.config.tp if self.config.sequence else 1)
        forms = [Form(torch.Size((rows, kept, self.shape.d_model)), self.dtype, True)]
        if self.shape.positions == "rotary":
            forms.append(Form(torch.Size((rows, self.tokens)), torch.int64, False))
        if self.first_loss is not None and message.made.stage >= self.first_loss:
            wide = torch.promote_types(self.dtype, torch.float32)
            forms.append(Form(torch.Size(()), wide, True))
        return forms

    def check(self, training: HybridTraining) -> None:
        """Raises ValueError where a stage of this rank has announced something else to the next."""
        mail = training.pipeline.mail
        for message in mail.messages:
            if message.source != mail.rank or message.made.kind != FORWARD:
                continue
            said, right = mail.forms[message.made], self(message)
            if said != right:
                raise ValueError(
                    f"stage {message.made.stage} passes {', '.join(map(str, said))} on, and the next one was traced "
                    f"with {', '.join(map(str, right))}"
                )


def second_step(
    build: Callable[[], Any],
    config: HybridConfig,
    samples: int,
    length: int | None = None,
    optimizer: Optimizer | None = None,
    max_norm: float | None = None,
) -> Measured:
    """What this rank does in its second step: the first one sends headers and makes the optimizer's states.

    build:    makes the model, the course's Transformer; on the meta device too
    samples, length: of this rank's part of the data (`data_rank`); tokens of each, default the model's longest
    optimizer: made of the rank's parameters; None: forward and backward alone
    max_norm: clips by the whole model's norm

    All ranks call it, or one that is traced.
    """
    model = build()
    shape, dtype = model.config, next(model.parameters()).dtype
    length = shape.max_length if length is None else length
    training = parallelize(model, config.mesh("cpu"), config)
    del model
    told = None
    answers = decisions.answers_of(None)
    if answers is not None and answers.coming is None:
        first_loss = training.pipeline.auxiliary.first
        told = answers.coming = Activations(config, shape, dtype, first_loss, samples, length)
    make = torch.Generator().manual_seed(training.data_rank)  # the same on all that share samples
    tokens, targets = (
        torch.randint(shape.vocab, (samples, length), generator=make) for _ in range(2)
    )
    updating = optimizer(training.module.parameters()) if optimizer else None

    def step() -> None:
        training.step(tokens, targets)
        if max_norm is not None:
            training.clip_grad_norm(max_norm)
        if updating is not None:
            updating.step()

    step()
    training.module.zero_grad()
    found = measure(step, training.module, updating, (tokens, targets))
    if told is not None:
        told.check(training)
    return found


def trace_stages(
    build: Callable[[], Any],
    config: HybridConfig,
    samples: int,
    length: int | None = None,
    optimizer: Optimizer | None = None,
    max_norm: float | None = None,
    *,
    counts: Callable[[int, int], Sequence[int]] | None = None,
    early: bool = False,
) -> list[Measured]:
    """`second_step` on one rank of each pipeline rank, the first on every other axis, in the pipeline's order.

    counts: rows of experts, replayed: as Answers has them. Ranks of one stage are then no longer alike
    early:  as run_rank's

    Raises ValueError where a step depends on values, and for lines of a mesh that do not add up.
    """
    check_lines(config)
    stages = []
    for place in range(config.pp):
        found, _ = run_rank(
            second_step, build, config, samples, length, optimizer, max_norm,
            rank=rank_at(config, pp=place), ranks=config.ranks, answers=Answers(counts=counts), early=early,
        )  # fmt: skip
        stages.append(found)
    return stages


def rank_at(config: HybridConfig, **place: int) -> int:
    """The rank at these places on the mesh's axes, 0 where none is said."""
    rank = 0
    for name, degree in config.degrees.items():
        rank = rank * degree + place.get(name, 0)
    return rank


def check_lines(config: HybridConfig) -> None:
    """Raises ValueError where experts lie so over dp_shard and cp that their ranks are not found by adding up lines.

    A virtual rank cannot ask who is where (decisions.grid). dp_shard x cp is counted as one axis and cut into ep parts:
    where the two are not neighbours on the mesh, a part that begins within one row of cp and ends within another is no
    line.
    """
    wide = [name for name in config.axes if getattr(config, name) > 1]
    if config.ep == 1 or not {"dp_shard", "cp"} <= {*wide}:
        return
    near = wide.index("cp") - wide.index("dp_shard") == 1
    if not near and config.ep % config.cp and config.cp % config.ep:
        raise ValueError(
            f"ep({config.ep}) neither divides cp({config.cp}) nor is a multiple of it, and dp_shard and cp are not "
            f"neighbours in {' x '.join(wide)}: who has which experts cannot be traced; put cp behind dp_shard"
        )
