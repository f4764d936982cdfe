"""Local SGD, elastic averaging, gossip, DiLoCo: the papers' algorithms; DDP where they come to it; bytes; resumed."""

from __future__ import annotations

import io
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.asynchronous import DiLoCo, ElasticAveraging, GossipSGD, LocalSGD, mixing
from dtcourse.collectives import traffic
from dtcourse.collectives.counted import Traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.verify import CASES
from tests.asynchronous import local_references as papers
from tests.asynchronous.local_references import Problem, build, require_same, train
from tests.turns import taking_turns

LR, STEPS = 0.3, 9
MOMENTUM = 0.8
INNER, OUTER = (0.02, 0.9, 0.95, 1e-3, 0.1), (0.7, 0.9)


def sgd(model, momentum=0.0, **options):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, **options)


def adamw(model):
    lr, b1, b2, eps, decay = INNER
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)


def graphs(p):
    found = {
        "ring": mixing.ring(p),
        "exponential": mixing.exponential(p),
        "one peer": mixing.one_peer_exponential(p),
        "star": mixing.metropolis_hastings(p, [(0, r) for r in range(1, p)]),
    }
    return found | ({"torus": mixing.torus(2, 2)} if p == 4 else {})


# name -> (how ranks train, the paper's on p replicas)
METHODS = {
    "local": (lambda m: LocalSGD(m, sgd(m), 4), lambda q: papers.local_sgd(q, STEPS, LR, 4)),
    "local, momentum": (
        lambda m: LocalSGD(m, sgd(m, MOMENTUM), 3),
        lambda q: papers.local_sgd(q, STEPS, LR, 3, MOMENTUM),
    ),
    "local, momentum averaged": (
        lambda m: LocalSGD(m, sgd(m, MOMENTUM), 3, average_state=True),
        lambda q: papers.local_sgd(q, STEPS, LR, 3, MOMENTUM, average_momentum=True),
    ),
    "post-local": (
        lambda m: LocalSGD(m, sgd(m, MOMENTUM), 2, synchronous_steps=4),
        lambda q: papers.local_sgd(q, STEPS, LR, 2, MOMENTUM, synchronous=4),
    ),
    "elastic": (
        lambda m: ElasticAveraging(m, sgd(m), 2),
        lambda q: papers.easgd(q, STEPS, LR, 2, 0.9)[0],
    ),
    "elastic, sharded": (
        lambda m: ElasticAveraging(m, sgd(m), 1, 0.6, shard_center=True),
        lambda q: papers.easgd(q, STEPS, LR, 1, 0.6)[0],
    ),
    "elastic, alone": (
        lambda m: ElasticAveraging(m, sgd(m), 1, 0.0),
        lambda q: papers.local_sgd(q, STEPS, LR, 1000),
    ),
    "elastic, Nesterov": (
        lambda m: ElasticAveraging(m, sgd(m, MOMENTUM, nesterov=True), 2),
        lambda q: papers.eamsgd(q, STEPS, LR, 2, 0.9, MOMENTUM)[0],
    ),
    "DiLoCo": (
        lambda m: DiLoCo(m, adamw(m), 3, *OUTER),
        lambda q: papers.diloco(q, STEPS, 3, INNER, OUTER),
    ),
}
CASES_OF = {  # AdamW leaves what has no gradient alone, its formula would let it decay
    name: ("tied", "frozen") if name == "DiLoCo" else ("tied", "frozen", "unused")
    for name in METHODS
}


def gossip(graph, overlap):
    return lambda m: GossipSGD(m, sgd(m), graph, overlap=overlap)


def all_methods():
    """Every method on its cases; what the center came to; post-local SGD inside DDP; frozen parameters are rank 0's."""
    p, found = dist.get_world_size(), {}
    for name, (wrap, _) in METHODS.items():
        for case in CASES_OF[name] if p == 3 else ("mlp",):
            model = build(case)
            optimizer = wrap(model)
            found[name, case] = train(case, model, optimizer, STEPS)
            if "elastic" in name:
                center = optimizer.center_parameters()
                found[name, case, "center"] = torch.cat([c.flatten() for c in center.values()])
            for right, mine in zip(
                CASES[case].build(0).parameters(), model.parameters(), strict=True
            ):
                assert mine.requires_grad or torch.equal(mine, right.double())
    for name, graph in graphs(p).items():
        for overlap in (True, False):
            case = "unused" if name == "ring" else "frozen"
            model = build(case)
            found[name, overlap] = train(case, model, gossip(graph, overlap)(model), STEPS)
    for ddp in (DistributedDataParallel, TorchDDP):
        model = build("mlp")
        wrapped = ddp(model)
        optimizer = LocalSGD(wrapped, sgd(model, MOMENTUM), 2, synchronous_steps=4)
        found["post-local", ddp.__module__] = train("mlp", model, optimizer, STEPS, forward=wrapped)
    return found


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/asynchronous/")])
def test_ranks_do_what_the_papers_say(p):
    run = launch(all_methods, p, timeout=240)
    for key in run[0]:
        got = [found[key] for found in run]
        if "center" in key:
            name, case, _ = key
            if "Nesterov" in name:
                right = papers.eamsgd(Problem(case, p), STEPS, LR, 2, 0.9, MOMENTUM)[1]
            else:
                options = {
                    "elastic": (2, 0.9),
                    "elastic, sharded": (1, 0.6),
                    "elastic, alone": (1, 0.0),
                }
                right = papers.easgd(Problem(case, p), STEPS, LR, *options[name])[1]
            for mine in got:
                torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)
        elif key[0] in METHODS and key[1] in CASES:
            require_same(got, METHODS[key[0]][1](Problem(key[1], p)), key)
        elif key[0] == "post-local":
            require_same(got, METHODS["post-local"][1](Problem("mlp", p)), key)
        else:
            name, overlap = key
            case = "unused" if name == "ring" else "frozen"
            matrices = mixing.rounds(graphs(p)[name])
            require_same(got, papers.d_psgd(Problem(case, p), STEPS, LR, matrices, overlap), key)


# --- where they come to DDP --------------------------------------------------------------------------------------

SAME_AS_DDP = {
    "local": (lambda m: LocalSGD(m, sgd(m), 1), {}),
    "local, momentum": (
        lambda m: LocalSGD(m, sgd(m, MOMENTUM), 1, average_state=True),
        {"momentum": MOMENTUM},
    ),
    "post-local": (
        lambda m: LocalSGD(m, sgd(m, MOMENTUM), 5, synchronous_steps=STEPS),
        {"momentum": MOMENTUM},
    ),
    "gossip": (
        lambda m: GossipSGD(m, sgd(m), mixing.complete(dist.get_world_size()), overlap=False),
        {},
    ),
    "DiLoCo": (lambda m: DiLoCo(m, sgd(m), 1, 1.0, 0.0), {}),
}


def beside_ddp():
    found = {}
    for name, (wrap, options) in SAME_AS_DDP.items():
        for case in ("tied", "frozen"):
            model = build(case)
            found[name, case, "local"] = train(case, model, wrap(model), STEPS)
            for ddp in (DistributedDataParallel, TorchDDP):
                model = build(case)
                wrapped = ddp(model)
                right = train(case, model, sgd(model, **options), STEPS, forward=wrapped)
                found[name, case, ddp.__module__] = right
    return found


@pytest.mark.parametrize("p", [1, 3])
def test_in_the_degenerate_case_they_are_ddp(p):
    run = launch(beside_ddp, p, timeout=240)
    for name, case, kind in run[0]:
        right = [found[name, case, kind] for found in run]
        got = [found[name, case, "local"] for found in run]
        require_same(
            got, [torch.stack(step) for step in zip(*right, strict=True)], (name, case, kind)
        )


def in_nodes():
    """DistributedDataParallel in each node of two ranks, local SGD across the nodes."""
    found, rank = {}, dist.get_rank()
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for synchronous in (0, 3):
        for ddp in (DistributedDataParallel, TorchDDP):
            model = build("mlp")
            wrapped = ddp(model, process_group=nodes[rank // 2])
            optimizer = LocalSGD(
                wrapped, sgd(model), 2, synchronous_steps=synchronous, group=across[rank % 2]
            )
            found[synchronous, ddp.__module__] = train(
                "mlp", model, optimizer, STEPS, forward=wrapped
            )
    with pytest.raises(
        ValueError, match="which averages the gradients of the same ranks in each step"
    ):
        DiLoCo(DistributedDataParallel(model), sgd(model), 2)
    return found


class Nodes(Problem):
    """Two nodes of two ranks each: a node has one gradient."""

    def gradients(self, X, step):
        G = super().gradients(X, step)
        return G.view(2, 2, -1).mean(1, keepdim=True).expand(2, 2, -1).reshape(4, -1)


def test_ddp_in_each_node_and_local_sgd_across():
    run = launch(in_nodes, 4, timeout=240)
    for key in run[0]:
        right = papers.local_sgd(Nodes("mlp", 4), STEPS, LR, 2, synchronous=key[0])
        require_same([found[key] for found in run], right, key)


# --- bytes -------------------------------------------------------------------------------------------------------


def counted():
    p, found = dist.get_world_size(), {}
    methods = {name: wrap for name, (wrap, _) in METHODS.items()}
    methods |= {("gossip", name): gossip(graph, True) for name, graph in graphs(p).items()}
    for name, wrap in methods.items():
        model = build("tied")
        optimizer = wrap(model)
        with traffic.counting() as sent:
            train("tied", model, optimizer, STEPS)
        found[name] = sent.record()
    return found, sum(q.numel() for q in papers.trained(model))


def test_bytes_are_the_formulas():
    p = 4
    run = launch(counted, p, backend="ring", timeout=240)
    n = run[0][1]
    size, padded = 8 * n, 8 * p * -(-n // p)
    # Meetings, bytes averaged in one, numbers that ranks agree on in one.
    expected = {
        "local": (STEPS // 4, size, 3),
        "local, momentum": (STEPS // 3, size, 3),
        "local, momentum averaged": (STEPS // 3, 2 * size, 3),
        "elastic": ((STEPS - 1) // 2, size, 2),
        "elastic, sharded": (STEPS - 1, padded, 2),
        "elastic, alone": (STEPS - 1, size, 2),
        "elastic, Nesterov": ((STEPS - 1) // 2, size, 2),
        "DiLoCo": (STEPS // 3, size, 2),
    }
    for name, (meetings, each, numbers) in expected.items():
        together = Traffic.from_ranks([found[name] for found, _ in run])
        assert together.bytes_sent() == meetings * 2 * (p - 1) * (each + 16 * numbers), name
    together = Traffic.from_ranks([found["post-local"] for found, _ in run])
    agreement = (STEPS - 4) // 2 * 48
    assert together.bytes_sent() == 2 * (p - 1) * ((4 + (STEPS - 4) // 2) * size + agreement)
    for name, graph in graphs(p).items():
        together = Traffic.from_ranks([found["gossip", name] for found, _ in run])
        matrices = mixing.rounds(graph)
        for rank in range(p):
            destinations = [
                mixing.neighbours(matrices[t % len(matrices)], rank)[1] for t in range(STEPS)
            ]
            assert together.bytes_sent(rank) == sum(map(len, destinations)) * size, name
            assert together.messages_sent(rank) == sum(map(len, destinations)), name
            peers = {row.peer for row in together.select(rank=rank, direction="sent")}
            assert peers == {k for step in destinations for k in step}, name
    assert together.operations == ["gossip"]


# --- memory ------------------------------------------------------------------------------------------------------

SIZE = 4 * 60_000  # bytes of parameters
SMALL = 4_000  # of counts, losses, activations
WRAPS = {
    "local": lambda m: LocalSGD(m, sgd(m), 1),
    "elastic": lambda m: ElasticAveraging(m, sgd(m), 1),
    "elastic, sharded": lambda m: ElasticAveraging(m, sgd(m), 1, shard_center=True),
    "DiLoCo": lambda m: DiLoCo(m, sgd(m), 1),
    "gossip": lambda m: GossipSGD(m, sgd(m), mixing.ring(dist.get_world_size())),
}


FORMULAS = {  # kept from step to step, and at the most in one with a meeting; of 3 ranks
    "local": (0, 1),
    "elastic": (1, 1 + 2),
    "elastic, sharded": (1 / 3, None),  # gloo's reduce-scatter has copies of its own
    "DiLoCo": (2, 2 + 2),
    "gossip": (0, 1 + 2 + 1),
}


def memory():
    """Bytes besides the model's and its gradients', after a step with a meeting and at the most in it."""
    found = {}
    for name, wrap in WRAPS.items():
        model = torch.nn.Linear(60_000, 1, bias=False)
        optimizer, x = wrap(model), torch.ones(1, 60_000)
        for _ in range(2):
            optimizer.zero_grad()
            with MemoryTracker(model, optimizer.optimizer, inputs=[x]) as tracker:
                model(x).sum().backward()
                optimizer.step()
                # gloo's threads let go of what they have sent when they come to it
                for _ in range(1000):
                    # parameters, gradients, x
                    total = sum(tracker.history.curve().values()) - 3 * SIZE
                    if total[-1] < FORMULAS[name][0] * SIZE + SMALL:
                        break
                    time.sleep(0.01)
        found[name] = int(total[-1]), int(total.max())
    return found


def test_live_bytes_are_the_formulas():
    for found in launch(memory, 3, timeout=240):
        for name, (kept, most) in FORMULAS.items():
            after, peak = found[name]
            assert abs(after - kept * SIZE) < SMALL, (name, after / SIZE)
            assert most is None or abs(peak - most * SIZE) < SMALL, (name, peak / SIZE)


# --- resumed -----------------------------------------------------------------------------------------------------


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def resumed():
    """Saved in the middle of a round, loaded into another model, and on."""
    graph = mixing.one_peer_exponential(dist.get_world_size())
    methods = {name: wrap for name, (wrap, _) in METHODS.items()} | {"gossip": gossip(graph, True)}
    for name, wrap in methods.items():
        model = build("tied")
        right = train("tied", model, wrap(model), STEPS)
        for stop in (2, 5):
            model = build("tied")
            optimizer = wrap(model)
            train("tied", model, optimizer, stop)
            kept = through_a_file([model.state_dict(), optimizer.state_dict()])
            model = CASES["tied"].build(77).double()
            optimizer = wrap(model)
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
            got = train("tied", model, optimizer, STEPS - stop, first=stop)
            assert optimizer.steps == STEPS
            for step, (mine, uninterrupted) in enumerate(zip(got, right[stop:], strict=True)):
                assert torch.equal(mine, uninterrupted), f"{name}: {step} steps after {stop}"


def test_resumed_in_the_middle_of_a_round_is_uninterrupted_bit_for_bit():
    launch(resumed, 2, timeout=240)
