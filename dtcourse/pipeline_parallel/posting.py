"""In which order messages are posted: one order for all ranks, since NCCL carries them out in the order of posting.

NCCL has no tags. Sends and receives of one pair of ranks share a stream, in both directions (and those of all ranks
share one, where init_process_group was given device_id). Each starts when those before it are over, and a send is over
when it is received. So two ranks that both post a receive before their own send to the other wait for ever.

Where all ranks post in the same order, nobody does: of the messages that are not over, the first one is first on both
of its ranks. What the order has to respect is the schedule: a rank posts what it needs before it waits for it, and what
it makes after that.

The order is that of rounds. In each round every rank performs its next action, if what that needs was made in an
earlier round. Messages that cross (1F1B's activation down and gradient up) are of the same round, and the lower rank's
goes first. PyTorch's pipelining puts sends and receives into its lists in such rounds, too (_add_send_recv).
"""

from __future__ import annotations

from typing import NamedTuple

from dtcourse.pipeline_parallel.actions import FORWARD, Action, Schedule, needed_by, needs, result


class Message(NamedTuple):
    """What one action makes for another rank: F's activations, B's or I's gradient (named B either way).

    number: its place among all messages of a step
    """

    made: Action
    source: int
    destination: int
    number: int

    @property
    def forward(self) -> Action:
        """The forward at the same border: this one, or the one whose outputs' gradients come back."""
        stage, kind, i = self.made
        return self.made if kind == FORWARD else Action(stage - 1, FORWARD, i)


def in_rounds(schedule: Schedule) -> list[Action]:
    """The actions of a schedule that can be run (`validate`), round by round, in a round from rank 0 on."""
    order: list[Action] = []
    made: set[Action] = set()
    position = [0] * schedule.num_ranks
    while len(order) < sum(map(len, schedule)):
        this_round = []
        for rank, actions in enumerate(schedule):
            if position[rank] < len(actions):
                need = needs(actions[position[rank]], schedule.num_stages)
                if need is None or need in made:
                    this_round.append(actions[position[rank]])
                    position[rank] += 1
        order += this_round
        made |= set(map(result, this_round))
    return order


def messages_of(schedule: Schedule) -> list[Message]:
    """All messages of a step, in the order in which every rank posts those that it sends or receives."""
    found: list[Message] = []
    for action in in_rounds(schedule):
        if (to := needed_by(action, schedule.num_stages)) is not None:
            source, destination = schedule.rank_of[action.stage], schedule.rank_of[to]
            if source != destination:
                found.append(Message(result(action), source, destination, len(found)))
    return found


def proven(schedule: Schedule, rank: int) -> dict[Action, list[Action]]:
    """By message that a rank receives: which of its own messages the other rank must have received before it sent it.

    That is how a rank knows what it need not keep. gloo's work says of a send that it is complete only once it has been
    waited for.
    """
    found: dict[Action, list[Action]] = {}
    for other in set(range(schedule.num_ranks)) - {rank}:
        received: list[Action] = []
        for action in schedule.ranks[other]:
            need = needs(action, schedule.num_stages)
            if need is not None and schedule.rank_of[need.stage] == rank:
                received.append(need)
            to = needed_by(action, schedule.num_stages)
            if to is not None and schedule.rank_of[to] == rank:
                found[result(action)], received = received, []
    return found
