"""A model as a list of layers, each a function of the one before: what stages are cut from.

A border between two stages is a place where one tensor is alive: it is what travels. An nn.Sequential is such a list
already. A GPT-like decoder (known by its attributes: token_embedding, blocks, norm, output) is its embedding, its
blocks and its head. Of any other model the borders are found by following one tensor through its forward (torch.fx):
inside a residual block two tensors are alive, and there is no border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn

from dtcourse.collectives import p2p
from dtcourse.lookup import check_length, check_positions, look_up
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.stages import names_of, tied_parameters


class Embeddings(nn.Module):
    """A decoder's first layer: tokens_BS -> x_BSD. It is the model's own embeddings and dropout.

    positions_BS: each token's place in the whole sequence, where a rank has a part of it; default 0, 1, 2, ... Rotary
                  attention needs them in each block: they are returned beside x_BSD then, and go from layer to layer

    What the model refuses (a sequence or a position above max_length, tokens above vocab) is a ValueError here as well.
    """

    name_in_whole = ""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.token_embedding = model.token_embedding
        self.position_embedding = model.position_embedding
        self.dropout = model.dropout
        self.vocab: int = model.config.vocab
        self.max_length: int = model.config.max_length

    def forward(self, tokens_BS: torch.Tensor, positions_BS: torch.Tensor | None = None) -> Any:
        check_length(tokens_BS.shape[-1], self.max_length)
        x_BSD = look_up(self.token_embedding, tokens_BS, self.vocab, "tokens", "vocab")
        if self.position_embedding is not None:
            places = positions_BS
            if places is None:
                places = torch.arange(tokens_BS.shape[-1], device=tokens_BS.device)
            learned = self.position_embedding
            return self.dropout(
                x_BSD + look_up(learned, places, self.max_length, "positions", "max_length")
            )
        x_BSD = self.dropout(x_BSD)
        if positions_BS is None:
            return x_BSD
        check_positions(positions_BS, self.max_length)
        return x_BSD, positions_BS


class Head(nn.Module):
    """A decoder's last layer: x_BSD -> logits (B, S, V). It is the model's own norm and output layer."""

    name_in_whole = ""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.output = model.norm, model.output

    def forward(
        self, x_BSD: torch.Tensor, positions_BS: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Positions end here."""
        return self.output(self.norm(x_BSD))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The model's layers, with its own parameters: one after the other they compute what the model computes.

    Each says by `name_in_whole` what the model calls it; "" where its parts have names of the model's own.

    Raises ValueError for a model that cannot be split, with what to do about it.
    """
    if isinstance(model, nn.Sequential):
        return _named(model)
    parts = ("token_embedding", "position_embedding", "dropout", "blocks", "norm", "output")
    if all(hasattr(model, part) for part in parts):
        blocks = _named(model.get_submodule("blocks"), "blocks.")
        for block in blocks:
            block.passes_on = model.position_embedding is None  # type: ignore[assignment]
        return [Embeddings(model), *blocks, Head(model)]
    return _between_borders(model)


def _named(container: Any, prefix: str = "") -> list[nn.Module]:
    """What a Sequential or ModuleList holds, each under its name; one that is there twice under the last."""
    for name, layer in zip(names_of(container), container, strict=True):
        layer.name_in_whole = prefix + name
    return list(container)


def shared_parameters(
    layers: Sequence[nn.Module],
    ranges: Sequence[range],
    schedule: Schedule,
    group: dist.ProcessGroup | None = None,
) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
    """Pipeline's `shared`: this rank's parameters of which other ranks hold copies,
    since layers there use the same one. Stages that `split` has made say it themselves.

    layers: of the whole model (a Transformer's tied embedding is in the first one and in the last one)
    group:  the pipeline's ranks; default: all. All of them call it
    """
    me = p2p.rank(group)
    mine = []
    for names in (one.names for one in tied_parameters(layers, ranges) if one.trained):
        ranks = sorted({schedule.rank_of[stage] for stage in names})
        if me in ranks and len(ranks) > 1:
            stage = next(stage for stage in names if schedule.rank_of[stage] == me)
            place, _, name = names[stage].partition(".")
            mine.append((layers[ranges[stage][int(place)]].get_parameter(name), ranks))
    world = list(range(p2p.size(group))) if group is None else dist.get_process_group_ranks(group)
    groups: dict[tuple[int, ...], Any] = {}
    for among in dict.fromkeys(tuple(ranks) for _, ranks in mine):
        # Pipelines beside this one make theirs at the same time: only its members take part.
        members = [world[rank] for rank in among]
        groups[among] = dist.new_group(members, use_local_synchronization=True)
    return [(parameter, groups[tuple(ranks)]) for parameter, ranks in mine]


_ADVICE = "Write it as an nn.Sequential of layers, each with one tensor in and one out, or give split() such a list."


def _between_borders(model: nn.Module) -> list[nn.Module]:
    name = type(model).__name__
    try:
        graph = fx.Tracer().trace(model)
    # A stand-in for a tensor goes through the forward, which may raise anything.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{name} cannot be split: its forward cannot be followed ({reason}). {_ADVICE}"
        ) from error
    nodes = [node for node in graph.nodes if node.op != "output"]
    inputs = [node for node in nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        names = ", ".join(str(node.target) for node in inputs)
        raise ValueError(f"{name} cannot be split: it takes several inputs ({names}). {_ADVICE}")
    for node in nodes:
        if "training" in node.kwargs:
            raise ValueError(
                f"{name} cannot be split: {node.name} would stay in training "
                "(or evaluation) for ever. Make it a module (nn.Dropout for F.dropout)."
            )
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    if result is not nodes[-1]:
        kind = "an earlier tensor" if isinstance(result, fx.Node) else f"a {type(result).__name__}"
        raise ValueError(
            f"{name} cannot be split: it returns {kind}, not the one tensor that it makes last. {_ADVICE}"
        )
    pieces = list(_pieces(model, nodes))
    layers = [_layer(model, before, piece) for before, piece in pieces]
    for layer in layers:
        layer.name_in_whole = ""  # type: ignore[assignment]
    if len(layers) < 2:
        raise ValueError(
            f"{name} cannot be split: nowhere between its parameters is there one tensor alone that the rest needs. "
            f"{_ADVICE}"
        )
    return layers


def _pieces(model: nn.Module, nodes: Sequence[fx.Node]) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """The forward from border to border: the tensor that comes in, and what is done;
    each piece but the last with weights.

    What has no weights of its own (relu, a mean) goes with what comes before it.
    """
    place = {node: i for i, node in enumerate(nodes)}
    last_use = [
        max((place.get(user, len(nodes)) for user in node.users), default=i)
        for i, node in enumerate(nodes)
    ]
    borders = [0]
    for i in range(1, len(nodes)):
        alive = [j for j in range(i + 1) if last_use[j] > i]
        if alive == [i]:
            borders.append(i)
    before, weights = nodes[0], False
    piece: list[fx.Node] = []
    for start, end in zip(borders, [*borders[1:], len(nodes) - 1], strict=True):
        part = nodes[start + 1 : end + 1]
        if not part:
            continue
        if _has_weights(model, part) and weights:
            yield before, piece
            before, piece = nodes[start], []
        piece = [*piece, *part]
        weights = weights or _has_weights(model, part)
    yield before, piece


def _has_weights(model: nn.Module, nodes: Sequence[fx.Node]) -> bool:
    for node in nodes:
        if node.op == "get_attr":
            return True
        if node.op == "call_module" and list(model.get_submodule(str(node.target)).parameters()):
            return True
    return False


def _layer(model: nn.Module, before: fx.Node, piece: Sequence[fx.Node]) -> nn.Module:
    """A module of its own that does a piece, with the model's own submodules."""
    graph = fx.Graph()
    copies = {before: graph.placeholder("x")}
    for node in piece:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
    graph.output(copies[piece[-1]])
    return fx.GraphModule(model, graph, type(model).__name__ + "Part")
