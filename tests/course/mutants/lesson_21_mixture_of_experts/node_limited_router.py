"""Answers to node_limited_router: see test_exercises.py."""

_WANTED = "wanted = scores + bias"
_NODES = "best = by_node.topk(-(-k // most), -1).values.sum(-1).topk(most).indices"
_LEFT = "left = wanted.masked_fill(~allowed, -torch.inf)"
_WEIGHTS = "weights = scores.gather(1, experts)"
_HEADER = "def route(x, weight, bias, nodes, most, k):\n"

MUTANTS = [
    (
        "the bias is in the weights",
        "Is the bias in them",
        ((_WEIGHTS, "weights = wanted.gather(1, experts)"),),
    ),
    (
        "the bias does not count",
        "Does the bias count",
        ((_WANTED, "wanted = scores"),),
    ),
    (
        "any node",
        "what is left of the other nodes' scores",
        ((_LEFT, "left = wanted"),),
    ),
    (
        "a node's best expert alone decides",
        "Of how many of its experts",
        ((_NODES, "best = by_node.amax(-1).topk(most).indices"),),
    ),
    (
        "all experts of a node decide",
        "Of how many of its experts",
        ((_NODES, "best = by_node.sum(-1).topk(most).indices"),),
    ),
    (
        "softmax in place of sigmoids",
        "Of how many of its experts",
        (("(x @ weight.T).sigmoid()", "(x @ weight.T).softmax(-1)"),),
    ),
    (
        "not over their sum",
        "what is a token's sum",
        (("weights / weights.sum(-1, keepdim=True)", "weights"),),
    ),
    (
        "weights without a gradient",
        "What may be detached",
        ((_WEIGHTS, "weights = scores.detach().gather(1, experts)"),),
    ),
    (
        "the sum is a constant",
        "Through which factors",
        (
            (
                "weights / weights.sum(-1, keepdim=True)",
                "weights / weights.sum(-1, keepdim=True).detach()",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "node by node, in a loop",
        (
            (
                _NODES,
                "parts = [x.sort(descending=True).values[:, : -(-k // most)].sum(1) for x in by_node.unbind(1)]\n"
                "    best = torch.stack(parts, 1).topk(most).indices",
            ),
        ),
    ),
    (
        "a weight's share by a logarithm",
        (
            (
                "weights / weights.sum(-1, keepdim=True)",
                "(weights.log() - weights.sum(-1, keepdim=True).log()).exp()",
            ),
        ),
    ),
]

NOTHING = [
    (
        "the first experts",
        "\nimport torch\n\n\n"
        + _HEADER
        + "    experts = torch.arange(k).expand(len(x), k)\n    return experts, torch.full((len(x), k), 1 / k).double()\n",
    ),
]
