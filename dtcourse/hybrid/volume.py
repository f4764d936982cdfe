"""Which axis talks how much: the bytes that a step sends on each, from the sizes alone.

    volume(model, config, samples=16)       # {("tp", "all_reduce"): 147_520, ("pp", "send"): 32_768, ...}

What each axis sends, with m micro-batches of T tokens in all, a model's width D, and n numbers in the parameters of a
stage after tensor parallelism (Narayanan et al. 2104.04473, section 3; Rajbhandari et al. 1910.02054; Liu et al.
2310.01889):

    pp            T D to the next stage and back
    tp            all-reduces of T D, two per block forward and two backward, and two round the vocabulary
    cp            keys and values to all others, forward; in backward again, with their gradients
    dp_shard      n gathered for each micro-batch, forward and backward, and its gradients reduced; by reduce_once
                  gathered until the first backward alone, and reduced once per step
    dp_replicate  an all-reduce of gradients: once per step, or as often as full sharding reduces
    tp, dp, cp    and what the loss asks for: three numbers per token, and counts

So tp, cp and pp send with the batch, and dp with the parameters: that is why tp belongs inside a node.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dtcourse.hybrid.axes import DATA
from dtcourse.hybrid.config import HybridConfig
from dtcourse.hybrid.parallelize import ranges_of
from dtcourse.pipeline_parallel import layers_of, one_f_one_b

Volume = dict[tuple[str, str], int]


def volume(model: Any, config: HybridConfig, samples: int, itemsize: int = 8) -> Volume:
    """Bytes that all ranks together send in a step (not the first, which sends headers), by axis and operation.

    model:    the course's Transformer before anything is cut, on the meta device as well
    samples:  of the whole batch, each of max_length tokens
    itemsize: bytes of a number: of activations, parameters and gradients, and of what the loss counts (a double)

    Collectives are rings: an all-reduce of k numbers over n ranks is 2 (n - 1) k, a gather or a scatter (n - 1) k.
    Raises ValueError for models and ways of which it does not know: tied embeddings, biases, experts, sequence,
    Ulysses, recompute, schedules but 1F1B; and for sizes that do not divide.
    """
    config.check_model(model)
    shape = model.config
    _check(shape, config)
    m, tp, pp, cp = config.micro_batches, config.tp, config.pp, config.cp
    replicas, shards = config.dp_replicate, config.dp_shard
    layers = [_elements(layer, config) for layer in layers_of(model)]
    blocks, held, tokens = shape.n_layers, sum(layers), samples * shape.max_length
    # Activations are those of all tokens, once: data and context ranks have different ones.
    activations = tokens * shape.d_model
    keys = tokens * shape.kv_heads * (shape.d_model // shape.n_heads)
    sent: Counter[tuple[str, str]] = Counter()
    sent["pp", "send"] = tp * (pp - 1) * 2 * activations
    # Forward: after the embedding, and twice per block; backward: twice per block, and before the head. Then the loss:
    # the largest logit and a flag per micro-batch, and two sums.
    of_loss = 3 * tokens + m * replicas * shards * cp
    sent["tp", "all_reduce"] = 2 * (tp - 1) * ((2 + 4 * blocks) * activations + of_loss)
    # Keys and values go round forward; backward they do again, and their gradients with them.
    sent["cp", "ring_attention"] = 3 * (cp - 1) * blocks * 2 * keys
    if shards > 1:
        axis = "dp_shard x cp" if cp > 1 else "dp_shard"
        copies, times = replicas * tp, 1 if config.reduce_once else m
        gathered = _gathered(model, config, layers)
        sent[axis, "all_gather"] = copies * (shards * cp - 1) * gathered
        sent[axis, "reduce_scatter"] = copies * (shards * cp - 1) * times * held
        sent["dp_replicate", "all_reduce"] = tp * 2 * (replicas - 1) * times * held
    else:
        sent["dp_replicate", "all_reduce"] = cp * tp * 2 * (replicas - 1) * held
        sent["cp", "all_reduce"] = replicas * tp * 2 * (cp - 1) * held
    # How many tokens count is asked on all ranks; the loss is on those of the last stage.
    for name in (*DATA, "cp"):
        size = getattr(config, name)
        groups = config.ranks // size
        sent[name, "all_reduce"] += (groups + groups // pp) * 2 * (size - 1)
    return {key: number * itemsize for key, number in sent.items() if number}


def _elements(layer: Any, config: HybridConfig) -> int:
    """Of a layer's parameters, the numbers on each tensor rank: matrices are cut, all else is left whole."""
    count, ranks = 0, config.dp_shard * config.cp if config.dp_shard > 1 else 1
    for name, parameter in layer.named_parameters():
        cut = config.tp if parameter.dim() == 2 and "position" not in name else 1
        if len(parameter) % (cut * ranks):
            raise ValueError(
                f"{name} has {len(parameter)} rows, and they do not divide by tp({cut}) x {ranks} ranks of full "
                "sharding: messages would have padding, which is not counted here"
            )
        count += parameter.numel() // cut
    return count


def _gathered(model: Any, config: HybridConfig, layers: list[int]) -> int:
    """Numbers that all stages gather in a step.

    Per micro-batch a block is gathered forward and backward; what else is a stage's own once, since it stays for the
    backward that comes next, and once more for each backward that follows another one. By reduce_once all stays from
    the first backward on.

    1F1B: a stage has as many micro-batches under way when its last forward ends as there are stages behind it.
    """
    m, numbers = config.micro_batches, 0
    for stage, held in enumerate(ranges_of(model, config)):
        under_way = min(config.pp - 1 - stage, m - 1)
        blocks = sum(layers[i] for i in held if 0 < i < len(layers) - 1)
        own = sum(layers[i] for i in held) - blocks
        if config.reduce_once:
            numbers += (under_way + 1) * (own + blocks) + blocks
        else:
            numbers += m * (own + 2 * blocks) + under_way * own
    return numbers


def _check(shape: Any, config: HybridConfig) -> None:
    unknown = {
        "tied embeddings": shape.tied,
        "biases": shape.bias,
        "experts": shape.experts > 0,
        f"{shape.kv_heads} key-value heads on tp({config.tp}) ranks": shape.kv_heads % config.tp
        > 0,
        "sequence=True": config.sequence,
        f"context={config.context!r}": config.context != "ring" and config.cp > 1,
        "recompute=True": config.recompute,
        config.schedule_name: config.schedule is not one_f_one_b,
    }
    found = [what for what, there in unknown.items() if there]
    if found:
        raise ValueError(
            f"the formula does not know of {', '.join(found)}: count it (launch(..., record=True))"
        )
