"""Causal ring attention where every p-th token is on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

STRIPED = Exercise(
    "striped_attention",
    lesson="20b",
    title="Striped attention",
    takes=("striped_attention",),
    target="equal to one process to 1e-9 at 2, 3 and 4 ranks; p blocks in p seconds; (p - 1) blocks sent",
    forbidden=("dtcourse.sequence_parallel", "torch.distributed.tensor"),
)

HEADS, DIM = 2, 3
RANKS = (2, 3, 4)


def _block(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    logsumexp = scores.logsumexp(-1, keepdim=True)
    return (scores - logsumexp).exp().nan_to_num() @ v, logsumexp


def _striped(striped_attention: Any, own: list[Tensor]) -> Any:
    """In a rank: its output, how many blocks it has computed with, of how many keys,
    and the seconds on the emulated clock.
    """
    from dtcourse import emulation

    keys = []

    def block(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        keys.append(k.shape[1])
        emulation.sleep(1.0)
        return _block(q, k, v, visible)

    out = striped_attention(*own, block)
    return out, keys, emulation.now()


def _runs(answer: Answer, tokens: int = 5) -> Any:
    """(ranks, inputs of the whole sequence, run). A message takes one second, whatever it holds."""
    for ranks in RANKS:
        tensors = [torch.randn(HEADS, ranks * tokens, DIM, dtype=torch.double) for _ in range(3)]
        own = [[x[:, rank::ranks].contiguous() for x in tensors] for rank in range(ranks)]
        run = answer.run(
            _striped,
            ranks,
            Each(own),
            network=EmulatedNetwork(latency=1.0),
            clock="virtual",
            backend="ring",
            record=True,
        )
        yield ranks, tensors, run


def _mistakes(q: Tensor, k: Tensor, v: Tensor, ranks: int) -> dict[str, Tensor]:
    """What some mistakes compute, by the question that leads out of each."""
    at = torch.arange(q.shape[1])
    rank, row = at % ranks, at // ranks
    causal, mine = at <= at[:, None], rank == rank[:, None]
    earlier, same = row < row[:, None], row == row[:, None]
    masks = {
        "Each block's diagonal is seen by every query: does token a p + r "
        "see b p + s for b = a, where s is larger than r?": earlier | same,
        "No diagonal but a rank's own is seen: does token a p + r see "
        "b p + s for b = a, where s is smaller than r?": earlier | (mine & same),
        "That is the mask of ranks that hold neighbours. Here a rank's tokens lie all over the sequence: which keys "
        "of a later rank does a query see?": (rank < rank[:, None]) | (mine & causal),
        "Tokens see their future: where is the causal mask?": torch.ones_like(causal),
        "That is each rank's own block only. Where do the others' keys come in?": mine & causal,
    }
    found = {}
    for hint, mask in masks.items():
        scores = (q @ k.mT / DIM**0.5).masked_fill(~mask, -torch.inf)
        found[hint] = scores.softmax(-1) @ v
    blocks = [
        _block(q, k[:, r::ranks], v[:, r::ranks], causal[:, r::ranks])[0] for r in range(ranks)
    ]
    hint = "The blocks' outputs weigh alike. How large is each one's sum of exponentials?"
    found[hint] = torch.stack(blocks).mean(0)
    found[hint + " "] = torch.stack(blocks).sum(0)
    return found


@STRIPED.check("the output is one process's", points=4)
def check_output(answer: Answer) -> None:
    """At 2, 3 and 4 ranks, in double precision."""
    for ranks, tensors, run in _runs(answer):
        q, k, v = tensors
        right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mistakes = _mistakes(q, k, v, ranks)
        for rank, (out, _, _) in enumerate(run):
            hint = "Whose keys are here in each step, and have they arrived before they are computed with?"
            if isinstance(out, Tensor) and out.shape == right[:, rank::ranks].shape:
                everyones = [one[0] for one in run]
                for said, wrong in mistakes.items():
                    same = [
                        isinstance(o, Tensor)
                        and o.shape == wrong[:, r::ranks].shape
                        and torch.allclose(o.double(), wrong[:, r::ranks], atol=1e-6)
                        for r, o in enumerate(everyones)
                    ]
                    if all(same):
                        hint = said
            require_close(
                out,
                right[:, rank::ranks],
                f"With {plural(ranks, 'rank')}, the output of rank {rank}",
                1e-9,
                hint.strip(),
            )


@STRIPED.check("p blocks, in p seconds", points=3, needs=("check_output",))
def check_seconds(answer: Answer) -> None:
    """A block takes a second, and so does a message."""
    for ranks, tensors, run in _runs(answer):
        tokens = tensors[0].shape[1] // ranks
        for rank, (_, keys, _) in enumerate(run):
            few = len(list(keys)) < ranks and set(keys) <= {tokens}
            require(
                list(keys) == [tokens] * ranks,
                f"With {plural(ranks, 'rank')} of {tokens} tokens, rank {rank} has called `block` with {list(keys)} "
                f"keys. It should compute with one rank's {tokens} keys at a time, {ranks} times: "
                + ("whose keys has it never met?" if few else "who has the memory for more?"),
            )
        seconds = max(one[2] for one in run)
        require(
            seconds < ranks + 0.01,
            f"With {plural(ranks, 'rank')}, the forward takes {seconds:.0f} seconds; {ranks} are enough. What could "
            "travel while a block is computed, and when is it posted?",
        )


@STRIPED.check("keys and values of p - 1 blocks are sent", points=2, needs=("check_output",))
def check_bytes(answer: Answer) -> None:
    """Counted."""
    for ranks, tensors, run in _runs(answer):
        most = (ranks - 1) * 2 * tensors[0].nbytes // ranks
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == most,
                f"With {plural(ranks, 'rank')}, rank {rank} sends {sent} bytes; its keys and values, passed on "
                f"{ranks - 1} times, are {most}. "
                "Who needs the block of the last step, and who needs queries?",
            )
