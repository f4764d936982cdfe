"""A lost rank's successor gets its state from the neighbour's memory: the same bits as from a file, and counted."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.fault_tolerance import Checkpoints
from dtcourse.fault_tolerance.holdings import Holdings, StateLost, plan
from dtcourse.fault_tolerance.peer_copies import LENGTHS, PeerCopies
from dtcourse.fault_tolerance.rank_state import RankState
from dtcourse.parameters.placement import local
from dtcourse.sharding import fully_shard
from tests.fault_tolerance.elastic_parts import WIDTH, Sharded


def lost_and_recovered(root, technique):
    """Rank 1 is lost after step 4, whose copy is on its way: all go on from step 2, from memory and from the file."""
    run = Sharded(technique)
    copies = PeerCopies(run.state, every=2, last=6)
    checkpoints = Checkpoints(root / technique)
    for number in range(1, 5):
        run.step()
        if number == 2:
            checkpoints.save(number, run.saved.snapshot(), run.saved.about())
        copies.after(number)
    undisturbed = run.bits()
    kept = None if dist.get_rank() == 1 else copies.kept
    steps, found = [], []
    for way in ("memory", "file"):
        again = Sharded(technique, seed=3)
        if way == "memory":
            peers = PeerCopies(again.state, every=2, kept=kept)
            steps.append(peers.recover())
            own, neighbours = peers.kept.own, peers.kept.neighbours
        else:
            steps.append(again.saved.load(checkpoints.latest()))
        again.step()
        again.step()
        found.append(again.bits())
    complete = set(own) == set(neighbours) == {2}
    return steps, complete, [all(map(torch.equal, one, undisturbed)) for one in found]


def each(root, techniques):
    return [lost_and_recovered(root, technique) for technique in techniques]


def test_from_memory_and_from_the_file_a_run_goes_on_with_the_same_bits(tmp_path):
    """A copy that is half sent is not used: that of step 4 was never asked for."""
    techniques = ("fully_shard", "ZeRO-1", "DDP")
    for said in launch(each, 3, tmp_path, techniques):
        assert said == [([2, 2], True, [True, True])] * len(techniques)


def counted():
    """What a copy and a recovery send, and what the copies take, beside the formulas."""
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)).double()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    copies = PeerCopies(RankState(model, optimizer), every=1)
    model(torch.ones(2, 4).double()).sum().backward()
    optimizer.step()
    took = []
    with traffic.counting() as counter:
        for step in (1, 2):
            copies.after(step)
            took.append(copies.bytes())
    copies.finish()
    took.append(copies.bytes())
    own, neighbours = copies.kept.own[2], copies.kept.neighbours[2]
    parts = [local(p).numel() for p in model.parameters()]
    formula = sum(3 * 8 * n + 4 for n in parts)  # weights and Adam's two in double, and its step
    again = PeerCopies(
        RankState(model, optimizer), kept=None if dist.get_rank() == 1 else copies.kept
    )
    with traffic.counting() as recovering:
        again.recover()
    return {
        "tensors": (len(own.tensors), formula),
        "sent": (sent(counter, "peer_copy"), 2 * (LENGTHS + own.bytes)),
        "took": (took, [n * (own.bytes + neighbours.bytes) for n in (1, 2, 1)]),
        "recovery": sent(recovering, "peer_recovery"),
        "state": own.bytes,
    }


def sent(counter, operation):
    rows = [r for r in counter.rows if (r.operation, r.direction) == (operation, traffic.SENT)]
    return sum(row.bytes for row in rows)


def test_bytes_sent_and_kept_are_those_of_the_formulas():
    said = launch(counted, 3)
    for one in said:
        for name in ("tensors", "sent", "took"):
            assert one[name][0] == one[name][1], name
    # Rank 2 has rank 1's copy and gives it back; rank 0 sends rank 1 the copy of its own that was lost with it.
    lengths = 16
    assert [one["recovery"] for one in said] == [
        lengths + said[0]["state"], 0, lengths + said[1]["state"]
    ]  # fmt: skip


def has(rank, own, neighbours, size=4, distance=1):
    return Holdings(rank, size, distance, tuple(own), tuple(neighbours))


def test_all_go_back_to_the_newest_step_that_is_somewhere_for_every_rank():
    # Rank 1 is lost. Its copy of step 30 has not come to rank 2 in whole.
    found = plan(
        [has(0, (20, 30), (20, 30)), None, has(2, (20, 30), (20,)), has(3, (20, 30), (20,))], 1
    )
    assert found.step == 20
    assert [(m.whose, m.src, m.dst) for m in found.own] == [
        (0, 0, 0),
        (1, 2, 1),
        (2, 2, 2),
        (3, 3, 3),
    ]
    assert [(m.src, m.dst) for m in found.copies] == [(0, 1), (2, 2), (3, 3), (0, 0)]
    # One that has let go of step 20 has heard from all that they have 30.
    found = plan(
        [has(0, (30,), (30,)), has(1, (20, 30), (20, 30)), has(2, (20, 30), (20, 30)), None], 1
    )
    assert found.step == 30


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_ranks_may_be_lost_but_one_with_the_holder_of_its_copy(size):
    for distance in range(1, size):
        for number in range(size + 1):
            for lost in itertools.combinations(range(size), number):
                everyone = [
                    None if r in lost else has(r, (7,), (7,), size, distance) for r in range(size)
                ]
                pairs = [r for r in lost if (r + distance) % size in lost]
                if number == size:
                    continue
                if not pairs:
                    assert plan(everyone, distance).step == 7
                    continue
                with pytest.raises(StateLost) as caught:
                    plan(everyone, distance)
                for r in pairs:
                    holder = (r + distance) % size
                    assert f"rank {r} and rank {holder}, which kept its copy," in str(caught.value)
                assert "Load the newest checkpoint" in str(caught.value)


def test_a_copy_that_was_never_complete_and_another_size_are_said():
    with pytest.raises(
        StateLost, match=r"1 rank \(1\) lost before a copy was complete on all ranks"
    ):
        plan([has(0, (5,), (), 3), None, has(2, (5,), (), 3)], 1)
    with pytest.raises(StateLost, match="copies are of the parts of 4 ranks, and there are 3 now"):
        plan([has(0, (5,), (5,)), has(2, (5,), (5,)), has(3, (5,), (5,))], 1)


def refused():
    state = RankState(model := nn.Linear(2, 2), torch.optim.SGD(model.parameters(), lr=0.1))
    said = []
    alone = [dist.new_group([r]) for r in range(2)][dist.get_rank()]
    for wrong in ({"every": 7, "last": 6}, {"every": 0}, {"distance": 2}, {"group": alone}):
        with pytest.raises(ValueError) as caught:
            PeerCopies(state, **wrong)
        said.append(str(caught.value))
    other = RankState(larger := nn.Linear(2, 3), torch.optim.SGD(larger.parameters(), lr=0.1))
    with pytest.raises(ValueError) as caught:
        other.load_state_dict(state.state_dict())
    said.append(str(caught.value))
    copies = PeerCopies(state)
    try:
        copies.after(1 + dist.get_rank())
    except ValueError as error:
        said.append(str(error))
    return said


def test_what_cannot_be():
    sentences = [
        "every=7 is more than the 6 steps of the run: no copy would ever be taken. Take 1 to 6",
        "every is a whole number, 1 or more; got 0",
        "distance=2 among 2 ranks leads back to the sender: take 1 to 1",
        "a world of 1 rank has no neighbour",
        "weight is [2, 2] there and [3, 2] here. Nothing was loaded",
        "call after(step) on all ranks after the same steps",
    ]
    for said in launch(refused, 2):
        assert len(said) == len(sentences)
        for sentence, text in zip(sentences, said, strict=True):
            assert sentence in text
