"""Answers to push_sum: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_SHARE = "share = held / (1 + len(to[rank]))"
_ARRIVED = "arrived = {j: torch.empty_like(share) for j, out in enumerate(to) if rank in out}"
_HELD = "held = share + sum(arrived.values())"
_RETURN = "return held[:-1] / held[-1]"
_WAITS = "        for work in works:\n            work.wait()\n"
_RECV = "works = [dist.irecv(buffer, j) for j, buffer in arrived.items()]"
_SEND = "works += [dist.isend(share, k) for k in to[rank]]"

# The lesson's: a mean of what is heard, with weights whose rows sum to 1.
_LESSONS = """
import torch
import torch.distributed as dist


def push_sum(x, peers):
    rank = dist.get_rank()
    for to in peers:
        arrived = {j: torch.empty_like(x) for j, out in enumerate(to) if rank in out}
        works = [dist.irecv(buffer, j) for j, buffer in arrived.items()]
        works += [dist.isend(x, k) for k in to[rank]]
        for work in works:
            work.wait()
        x = (x + sum(arrived.values())) / (1 + len(arrived))
    return x
"""

# Everything to everyone, then all ranks' rounds on each rank.
_GATHERED = """
import torch
import torch.distributed as dist


def push_sum(x, peers):
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    held = torch.cat([torch.stack(everyone), x.new_ones(len(everyone), 1)], 1)
    for to in peers:
        shares = torch.zeros(len(to), len(to), dtype=x.dtype)
        for rank, out in enumerate(to):
            shares[[rank, *out], rank] = 1 / (1 + len(out))
        held = shares @ held
    return (held[:, :-1] / held[:, -1:])[dist.get_rank()]
"""

MUTANTS = [
    ("the lesson's own: the mean of what is heard", "Whose numbers count more often", _LESSONS),
    (
        "the course's own gossip",
        "dtcourse.asynchronous",
        (
            (
                "    rank = dist.get_rank()\n",
                "    from dtcourse.asynchronous import GossipSGD\n\n    GossipSGD\n    rank = dist.get_rank()\n",
            ),
        ),
    ),
    (
        "the mean of all, ready-made",
        "That is the mean of all",
        "\nimport torch.distributed as dist\n\n\ndef push_sum(x, peers):\n    dist.all_reduce(x)\n    return x / dist.get_world_size()\n",
    ),
    ("everything to everyone", "send and receive alone", _GATHERED),
    ("not divided by the weight", "of how many ranks' worth", ((_RETURN, "return held[:-1]"),)),
    (
        "divided by the ranks",
        "what does each share weigh",
        ((_RETURN, "return held[:-1] / len(peers[0])"),),
    ),
    (
        "nothing is kept",
        "which one does it keep",
        ((_HELD, "held = 0 * share + sum(arrived.values())"),),
    ),
    (
        "all of it is kept",
        "which one does it keep",
        ((_HELD, "held = held + sum(arrived.values())"),),
    ),
    (
        "one share too few",
        "Which share of its vector",
        ((_SHARE, "share = held / max(1, len(to[rank]))"),),
    ),
    (
        "shares by what is heard",
        "Which share of its vector",
        ((_SHARE, "share = held / (1 + sum(rank in out for out in to))"),),
    ),
    (
        "the weight is not cut",
        "what does each share weigh",
        ((_SHARE, _SHARE + "\n        share[-1] = held[-1]"),),
    ),
    (
        "a round too few",
        "Which share of its vector",
        (("for to in peers:", "for to in peers[1:]:"),),
    ),
    (
        "always the first round's peers",
        "Which share of its vector",
        (("for to in peers:", "for to in [peers[0]] * len(peers):"),),
    ),
    (
        "added before it has come",
        "Which share of its vector",
        (
            (_ARRIVED, _ARRIVED.replace("empty_like", "zeros_like")),
            (_RECV, "works = []"),
            (_WAITS, ""),
            (
                _HELD,
                _HELD
                + "\n        for j, buffer in arrived.items():\n            dist.recv(buffer, j)\n"
                + _WAITS.rstrip(),
            ),
        ),
    ),
    (
        "zeros to those that are no peers",
        "Who is a peer",
        (
            (_ARRIVED, _ARRIVED.replace("if rank in out", "if j != rank")),
            (
                _SEND,
                _SEND.replace("share, k", "share * (k in to[rank]), k").replace(
                    "in to[rank]]", "in range(len(to)) if k != rank]"
                ),
            ),
        ),
    ),
    (
        "as many weights as numbers",
        "what does it need of you in a round",
        (
            ("held = torch.cat([x, x.new_ones(1)])", "held = torch.cat([x, torch.ones_like(x)])"),
            (_RETURN, "return held[: len(x)] / held[len(x) :]"),
        ),
    ),
    (
        "one message after the other",
        "need not wait for each other",
        (
            (_RECV, "works = []"),
            (
                _SEND,
                "for j in range(len(to)):\n"
                "            if j == rank:\n"
                "                for k in to[rank]:\n"
                "                    dist.isend(share, k).wait()\n"
                "            elif j in arrived:\n"
                "                dist.recv(arrived[j], j)",
            ),
        ),
    ),
    (
        "blocking sends first",
        "wait",
        (
            (_RECV, "[dist.send(share, k) for k in to[rank]]"),
            (_SEND, "works = [dist.irecv(buffer, j) for j, buffer in arrived.items()]"),
        ),
    ),
    (
        "to those it hears from",
        "wait",
        ((_SEND, "works += [dist.isend(share, k) for k in arrived]"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch
import torch.distributed as dist


def push_sum(x, peers):
    found = torch.stack(everyones(x))
    held = torch.cat([found, x.new_ones(len(found), 1)], 1)
    for to in peers:
        shares = torch.zeros(len(to), len(to), dtype=x.dtype)
        for rank, out in enumerate(to):
            shares[[rank, *out], rank] = 1 / (1 + len(out))
        held = shares @ held
    return (held[:, :-1] / held[:, -1:])[dist.get_rank()]
""",
    ),
]

ACCEPTED = [
    (
        "vector and weight in two messages, in a batch",
        """
import torch
import torch.distributed as dist


def push_sum(x, peers):
    me, weight = dist.get_rank(), torch.ones(1, dtype=x.dtype)
    for to in peers:
        x, weight = x / (len(to[me]) + 1), weight / (len(to[me]) + 1)
        sources = [j for j in range(len(to)) if me in to[j]]
        came = [(torch.zeros_like(x), torch.zeros_like(weight)) for _ in sources]
        batch = [dist.P2POp(dist.isend, t.clone(), k) for k in to[me] for t in (x, weight)]
        batch += [dist.P2POp(dist.irecv, t, j) for j, both in zip(sources, came) for t in both]
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()
        for vector, its_weight in came:
            x, weight = x + vector, weight + its_weight
    return x / weight
""",
    ),
    (
        "weights that nobody sends: all know the peers",
        """
import torch
import torch.distributed as dist


def push_sum(x, peers):
    rank = dist.get_rank()
    weights = [1.0] * len(peers[0])
    for to in peers:
        cut = [w / (1 + len(out)) for w, out in zip(weights, to)]
        weights = [w + sum(cut[j] for j, out in enumerate(to) if k in out) for k, w in enumerate(cut)]
        mine = x / (1 + len(to[rank]))
        sending = [dist.isend(mine, k) for k in to[rank]]
        x = mine.clone()
        buffers = [(torch.empty_like(x), j) for j, out in enumerate(to) if rank in out]
        for work in [dist.irecv(buffer, j) for buffer, j in buffers]:
            work.wait()
        for buffer, _ in buffers:
            x += buffer
        for work in sending:
            work.wait()
    return x / weights[rank]
""",
    ),
    (
        "sends posted before receives",
        (
            (_RECV, "works = [dist.isend(share, k) for k in to[rank]]"),
            (_SEND, "works += [dist.irecv(buffer, j) for j, buffer in arrived.items()]"),
        ),
    ),
]

NOTHING = [
    ("its own vector", "\ndef push_sum(x, peers):\n    return x\n"),
    ("nothing", "\ndef push_sum(x, peers):\n    return None\n"),
]
