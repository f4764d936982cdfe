"""Schedules that split the backward: the gradient for the stage before at once, that of the weights when there is time.

    y = x W       backward-input   dx = dy W^T   the stage before waits for it
                  backward-weight  dW = x^T dy   nobody does: it can fill a bubble

(Qi et al. 2023, Zero Bubble Pipeline Parallelism, 2401.10241; ZB-V: its section 6; DualPipe-V: DeepSeek.)

With F, I, W the seconds of forward, backward-input and backward-weight of one micro-batch on a rank, for enough
micro-batches and transfers for nothing:

                 idle seconds of a rank     activations stored
    1F1B         (p - 1) (F + I + W)        p - r, on rank r
    ZB-H1        (p - 1) (F + I - W)        p
    ZB-H2        (p - 1) (F + I - 2 W)      2 p - 1
    ZB-V         none, where F = I = W      p
    DualPipe-V   less than ZB-H1's          p + 1/2

An activation counts until W here; what I can free already, these schedules have for nothing.
"""

from __future__ import annotations

from collections import deque

from dtcourse.pipeline_parallel.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    looped,
    v_shaped,
)
from dtcourse.pipeline_parallel.schedules import at_least


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """1F1B's warm-up; rank r keeps r weight gradients back, for the end. A third of 1F1B's bubble where F = I = W.

    PyTorch's ScheduleInterleavedZeroBubble, with one stage a rank, is this one.
    """
    return _handcrafted("ZB-H1", ranks, micro_batches, extra=0)


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """Twice the warm-up, so that the first backward meets no bubble. None at all where F = I = W.

    The ranks' work forms a parallelogram: the first rank ends p - 1 micro-batches' time before the last one, and takes
    the optimizer's step without waiting for it. With fewer than 2 p - 1 micro-batches the bubble comes back.
    """
    return _handcrafted("ZB-H2", ranks, micro_batches, extra=1)


def _handcrafted(name: str, ranks: int, micro_batches: int, extra: int) -> Schedule:
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    lists = []
    for rank in range(ranks):
        ahead = ranks - 1 - rank
        warmup = min(micro_batches, ahead + 1 + extra * ahead)
        kept_back = rank + extra * rank
        actions = [Action(rank, FORWARD, i) for i in range(warmup)]
        for i in range(micro_batches):
            actions.append(Action(rank, BACKWARD_INPUT, i))
            if i >= kept_back:
                actions.append(Action(rank, BACKWARD_WEIGHT, i - kept_back))
            if warmup + i < micro_batches:
                actions.append(Action(rank, FORWARD, warmup + i))
        actions += [
            Action(rank, BACKWARD_WEIGHT, i)
            for i in range(max(0, micro_batches - kept_back), micro_batches)
        ]
        lists.append(actions)
    bound = [min(micro_batches, ranks + extra * (ranks - 1))] * ranks
    return Schedule(name, lists, looped(ranks), micro_batches, bound)


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """Two stages a rank, down and up again: 1F1B's memory and, where F = I = W, no bubble.

    The last stage lies on rank 0, beside the first, so the first backward begins where there is most time to fill; and
    a weight that first and last stage share needs no message. The order is that of PyTorch's ScheduleZBVZeroBubble.
    With fewer than 2 p - 1 micro-batches it is the schedule of 2 p - 1, without those that are not there.
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    full = max(2 * ranks - 1, micro_batches)
    lists = []
    for rank in range(ranks):
        todo = _Counter(down=rank, up=2 * ranks - 1 - rank)
        for _ in range(2 * (ranks - rank) - 1):
            todo.add("F down")
        for _ in range(rank):
            todo.add("F up", "F down")
        for _ in range(ranks - rank):
            todo.add("F up", "I up", "W up")
        while todo.count["F up"] < todo.count["F down"] or todo.count["F down"] < full:
            if todo.count["F down"] < full:
                todo.add("F down")
            todo.add("I down", "W down", "F up", "I up", "W up")
        for _ in range(rank):  # the way back is the critical one now: weights wait
            todo.add("I down", "I up")
        for _ in range(ranks - rank):
            todo.add("I down", "W down")
        while todo.count["W up"] < todo.count["I up"]:
            todo.add("W up")
        while todo.count["W down"] < todo.count["I down"]:
            todo.add("W down")
        lists.append([action for action in todo.actions if action.micro_batch < micro_batches])
    bound = [float(min(micro_batches, ranks))] * ranks
    return Schedule("ZB-V", lists, v_shaped(ranks), micro_batches, bound)


def dualpipe_v(ranks: int, micro_batches: int) -> Schedule:
    """DeepSeek's DualPipe cut in half: V-shaped, and in the middle a forward of one stage beside a backward of the
    other.

    DualPipe feeds micro-batches from both ends and holds the weights twice; folded at the middle (DualPipe-V, and "cut
    in half" by Sea AI Lab) it holds them once. The middle's pairs, one forward and one backward that need nothing of
    each other, are meant to run at once on a GPU, each hiding the other's messages; here they stand one after the
    other, as PyTorch's OVERLAP_F_B has them where a stage brings no code for both. Whole backwards where no bubble
    waits to be filled.

    Raises ValueError if there are fewer than 2 p micro-batches.
    """
    at_least(1, ranks, "rank")
    at_least(2 * ranks, micro_batches, "micro-batch")
    lists = []
    for rank in range(ranks):
        todo, after = _Counter(down=rank, up=2 * ranks - 1 - rank), ranks - 1 - rank
        todo.add(*["F down"] * 2 * after)
        todo.add(*["F down", "F up"] * (rank + 1))
        for _ in range(after):
            todo.add("I up", "W", "F up")
        todo.add(*["F down", "B up", "F up", "B down"] * (micro_batches - 2 * ranks + rank + 1))
        todo.add(*["B up", "F up", "B down"] * after)
        # On the way out, from the middle of the rank's last rank + 1 pairs on, weights wait.
        split = [
            2 * i + chunk >= 2 * ((rank + 1) // 2) + (rank + 1) % 2
            for i in range(rank + 1)
            for chunk in (0, 1)
        ]
        for i, late in enumerate(split):
            todo.add(("I " if late else "B ") + ("down" if i % 2 else "up"))
        for _ in range(after):
            todo.add("W", "I down")
        while todo.waiting:
            todo.add("W")
        lists.append(todo.actions)
    bound = [float(min(micro_batches, ranks + 0.5))] * ranks
    return Schedule("DualPipe-V", lists, v_shaped(ranks), micro_batches, bound)


class _Counter:
    """Writes a rank's list by words: "F down" is the next forward of its stage on the way down,
    "W" the oldest weight.
    """

    def __init__(self, down: int, up: int) -> None:
        self.stage = {"down": down, "up": up}
        self.actions: list[Action] = []
        self.count = {f"{kind} {way}": 0 for kind in "FIW" for way in self.stage}
        self.waiting: deque[Action] = deque()

    def add(self, *words: str) -> None:
        for word in words:
            if word == "W":
                if self.waiting:
                    self.actions.append(self.waiting.popleft())
                continue
            kind, way = word.split()
            number = f"I {way}" if kind == BACKWARD else word
            action = Action(self.stage[way], kind, self.count[number])
            self.actions.append(action)
            self.count[number] += 1
            if kind == BACKWARD_INPUT:
                self.waiting.append(action._replace(kind=BACKWARD_WEIGHT))
