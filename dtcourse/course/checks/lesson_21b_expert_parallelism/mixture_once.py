"""A mixture of experts whose tokens, and their gradients, travel once to each rank that they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.course.judging.verdicts import require_received
from dtcourse.plural import plural

ONCE = Exercise(
    "mixture_once",
    lesson="21b",
    title="Each token travels once to a rank, and so does its gradient",
    takes=("mixture_once", "mixture_once_backward"),
    target="output and all gradients one process's to 1e-9 at 2, 3 and 4 ranks; for each token and rank D + 2k numbers "
    "there and D back forward, D there and D + 2k back backward",
    forbidden=("dtcourse.expert_parallel",),
)

EACH, DIM, CHOICES = 3, 16, 4
LENGTHS = ((2, (7, 5)), (3, (6, 0, 9)), (4, (5, 5, 3, 8)))  # ranks, and tokens of each
Part = tuple[Tensor, Tensor, Tensor, Tensor]  # tokens, experts, weights, the output's gradient


def _compute(e: int, rows: Tensor, bias: Tensor | float) -> Tensor:
    """An expert that no other one can be taken for, and far from where tanh has no slope left to compare."""
    return torch.tanh(rows + e / 10 + bias).roll(e, -1)


def _mixtures(forward: Any, backward: Any, parts: list[Part], both: bool) -> Any:
    """For each batch: output, gradients, bytes of each pass, rows that each expert computed. both: backward as well."""
    import torch.distributed as dist

    from dtcourse.collectives import traffic

    rank, num_experts = dist.get_rank(), EACH * dist.get_world_size()

    def here(e: Any) -> int:
        if int(e) // EACH != rank:
            raise ValueError(f"rank {rank} holds no expert {e}")
        return int(e)

    def one_batch(x: Tensor, experts: Tensor, weights: Tensor, grad: Tensor) -> Any:
        """What is counted is no argument of what the answer calls: it could give another."""
        computed = [0] * num_experts
        biases = torch.zeros(num_experts, DIM, dtype=torch.double)

        def expert(e: Any, rows: Tensor) -> Tensor:
            computed[here(e)] += len(rows)
            return _compute(int(e), rows, 0.0)

        def expert_backward(e: Any, rows: Tensor, grad: Tensor) -> Tensor:
            by_rows = (1 - torch.tanh(rows + here(e) / 10).square()) * grad.roll(-int(e), -1)
            biases[int(e)] += by_rows.sum(0)
            return by_rows

        with traffic.counting() as there:
            out, kept = forward(x, experts, weights, expert, EACH)
        result, rows = out.clone() if isinstance(out, Tensor) else out, list(computed)
        with traffic.counting() as back:
            gradients = list(backward(grad, kept, expert_backward)) if both else []
        passes = [(one.bytes_sent(), one.bytes_received()) for one in (there, back)]
        return result, gradients, biases, *passes, rows

    return [one_batch(*part) for part in parts]


def _parts(ranks: int, lengths: tuple[int, ...], favourite: bool) -> list[Part]:
    """Each rank's tokens. favourite: all want the first experts, and nobody the last rank's."""
    parts = []
    for length in lengths:
        x, grad = torch.randn(2, length, DIM, dtype=torch.double)
        logits = torch.randn(length, EACH * ranks, dtype=torch.double)
        if favourite:
            logits[:, : CHOICES + 1] += 20
            logits[:, -EACH + 1 :] -= 90
        top = logits.topk(CHOICES)
        parts.append((x, top.indices, (top.values / 3).softmax(-1), grad))
    return parts


def _runs(
    answer: Answer, both: bool, least: int = 2
) -> Iterator[tuple[int, list[list[Part]], Any]]:
    """(ranks, each batch's parts, run), on at least so many ranks."""
    for ranks, lengths in LENGTHS:
        if ranks >= least:
            batches = [_parts(ranks, lengths, favourite) for favourite in (False, True)]
            own = Each(list(zip(*batches, strict=True)))
            yield ranks, batches, answer.run(_mixtures, ranks, own, both, backend="ring")


def _alone(part: Part, weighted: bool = True, choices: int = CHOICES) -> Tensor:
    """One process."""
    x, experts, weights, _ = part
    y = torch.zeros_like(x)
    for n in range(len(x)):
        for e, w in zip(experts[n, :choices].tolist(), weights[n].tolist(), strict=False):
            y[n] += (w if weighted else 1.0) * _compute(e, x[n], 0.0)
    return y


def _mistakes(part: Part) -> dict[str, Tensor]:
    """What some mistakes compute, by the question that leads out of each."""
    x, experts, weights, _ = part
    first = torch.zeros_like(x)
    for n, ranks in enumerate((experts // EACH).tolist()):  # one expert of each rank only
        for i in map(ranks.index, set(ranks)):
            first[n] += weights[n, i] * _compute(int(experts[n, i]), x[n], 0.0)
    unweighted = "The experts' outputs are added as they are: where does the gate's weight come in?"
    return {
        unweighted: _alone(part, weighted=False),
        "That is each token's first choice only: where are the others?": _alone(part, choices=1),
        "A token that needs a rank may have chosen several of its experts: which of them does it meet there?": first,
    }


def _gradients(parts: list[Part], num_experts: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """One process: each rank's gradients of tokens and weights, and the experts' of all tokens."""
    biases = torch.zeros(num_experts, DIM, dtype=torch.double, requires_grad=True)
    found, total = [], torch.zeros(num_experts, DIM, dtype=torch.double)
    for x, experts, weights, grad in parts:
        x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = torch.zeros_like(x)
        for e in range(num_experts):
            share = torch.where(experts == e, weights, 0.0).sum(1, keepdim=True)
            y = y + share * _compute(e, x, biases[e])
        of_biases, *own = torch.autograd.grad(y, (biases, x, weights), grad)
        total += of_biases
        found.append((own[0], own[1]))
    return found, total


def _where(ranks: int, parts: list[Part]) -> str:
    return f"With {plural(ranks, 'rank')} of {[len(x) for x, *_ in parts]} tokens,"


@ONCE.check("the output is one process's", points=3)
def check_output(answer: Answer) -> None:
    """At 2, 3 and 4 ranks, in double precision, whatever is chosen."""
    for ranks, batches, run in _runs(answer, both=False):
        for i, parts in enumerate(batches):
            for rank, part in enumerate(parts):
                out, right = run[rank][i][0], _alone(part)
                hint = "In what order do the rows come back, and whose are they?"
                if isinstance(out, Tensor) and out.shape == right.shape and len(right):
                    for said, wrong in _mistakes(part).items():
                        if torch.allclose(out.double(), wrong, atol=1e-6):
                            hint = said
                require_close(
                    out, right, f"{_where(ranks, parts)} the output of rank {rank}", 1e-9, hint
                )


@ONCE.check("the gradients are one process's", points=4, needs=("check_output",))
def check_gradients(answer: Answer) -> None:
    """Of the experts, of tokens and of weights."""
    for ranks, batches, run in _runs(answer, both=True):
        for i, parts in enumerate(batches):
            right, biases = _gradients(parts, EACH * ranks)
            where = _where(ranks, parts)
            for e in range(EACH * ranks):
                require_close(
                    run[e // EACH][i][2][e],
                    biases[e],
                    f"{where} the bias's gradient of expert {e}",
                    1e-9,
                    "Whose tokens has this expert computed, each with what weight, and has it been given the gradient "
                    "of its output for each of them, once?",
                )
            for rank in range(ranks):
                found = run[rank][i][1]
                require(
                    len(found) == 2,
                    f"mixture_once_backward should return two gradients; got {plural(len(found), 'thing')}.",
                )
                require_close(
                    found[0],
                    right[rank][0],
                    f"{where} the gradient of rank {rank}'s tokens",
                    1e-9,
                    "From how many ranks does a token's gradient come home, and what does each of them send it?",
                )
                require_close(
                    found[1],
                    right[rank][1],
                    f"{where} the gradient of rank {rank}'s weights",
                    1e-9,
                    "A weight multiplies one expert's output: which, for each place of `experts`? And is that output "
                    "the one before or after it was multiplied?",
                )


@ONCE.check("each expert computes its tokens", points=1, needs=("check_output",))
def check_rows(answer: Answer) -> None:
    """Those that chose it, and no others, in forward."""
    for ranks, batches, run in _runs(answer, both=False, least=4):
        for i, parts in enumerate(batches):
            chosen = torch.cat([experts.flatten() for _, experts, *_ in parts])
            counts = torch.bincount(chosen, minlength=EACH * ranks).tolist()
            for e, count in enumerate(counts):
                found = run[e // EACH][i][5][e]
                said = f"expert {e} has computed {plural(found, 'row')}; {plural(count, 'token')} chose it."
                hint = "Which of the rows that arrived are for which expert?"
                require(found == count, f"With {plural(ranks, 'rank')}, {said} {hint}")


def _require_bytes(answer: Answer, both: bool, hint: str) -> None:
    """That what must be is sent, and no more: backward, or forward alone."""
    way = "backward" if both else "forward"
    for ranks, batches, run in _runs(answer, both=both, least=4):
        for i, parts in enumerate(batches):
            needed = [
                torch.zeros(len(x), ranks, dtype=torch.bool).scatter(1, experts // EACH, True)
                for x, experts, *_ in parts
            ]
            for rank in range(ranks):
                others = [r for r in range(ranks) if r != rank]
                out = sum(int(needed[rank][:, r].sum()) for r in others)
                back = sum(int(needed[r][:, rank].sum()) for r in others)
                wide = back if both else out  # beside those rows are weights, or their gradients
                least = 8 * DIM * (out + back)
                most = least + 8 * (2 * CHOICES * wide + (0 if both else ranks))
                sent, came = run[rank][i][4 if both else 3]
                require(
                    sent <= most,
                    f"With {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes {way}. Its tokens need other "
                    f"ranks {out} times, and {plural(back, 'row')} go back from it: {most:,} are enough. {hint}",
                )
                require_received(f"With {ranks} ranks, rank {rank}, {way},", came, least)


@ONCE.check("a token travels once to a rank", points=2, needs=("check_output",))
def check_forward_bytes(answer: Answer) -> None:
    """Counted, there and back."""
    hint = "Does a row travel twice to a rank, or come back twice, and who gets rows that it does not need?"
    _require_bytes(answer, False, hint)


@ONCE.check("and so does its gradient", points=2, needs=("check_gradients",))
def check_backward_bytes(answer: Answer) -> None:
    """Counted, there and back."""
    hint = "Which rows are there since forward, how many gradients of one token does a rank send home, and who knows "
    _require_bytes(answer, True, hint + "the counts already?")
