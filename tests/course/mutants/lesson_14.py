"""Wrong answers to lesson 14's exercises, each rejected with the sentence that helps."""

_KEPT = """
def kept_bytes(batch, sequence, width, heads, kv_heads, hidden):
    tokens, kv = batch * sequence, kv_heads * width // heads
    norms = 2 * (width + 2)
    attention = 2 * width + 2 * kv + heads + width
    mlp = width + 4 * hidden
    return 4 * tokens * (norms + attention + mlp)
"""

_SAVED = """
def saved_bytes(forward, known):
    there_anyway = {id(tensor.untyped_storage()) for tensor in known}
    storages = {}
    def pack(tensor):
        storage = tensor.untyped_storage()
        if id(storage) not in there_anyway:
            storages[id(storage)] = storage
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())
"""

_SCALER = """
class Scaler:
    def __init__(self, scale, growth_interval):
        self.factor, self.growth_interval = float(scale), growth_interval
        self.good_steps, self.overflow = 0, False
    def scale(self, loss):
        return loss * self.factor
    def get_scale(self):
        return self.factor
    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients = [g for g in gradients if g is not None]
        bad = torch.tensor([float(not all(g.isfinite().all() for g in gradients))])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        self.overflow = bool(bad)
        if self.overflow:
            return False
        for g in gradients:
            g /= self.factor
        optimizer.step()
        return True
    def update(self):
        if self.overflow:
            self.factor, self.good_steps = self.factor / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.factor, self.good_steps = self.factor * 2, 0
"""

_REDUCE = """
def all_reduce_16(x):
    ranks, n = dist.get_world_size(), x.numel()
    part = -(-n // ranks)
    padded = x.new_zeros(ranks * part)
    padded[:n] = x
    arrived = torch.empty_like(padded)
    dist.all_to_all_single(arrived, padded)
    mine = arrived.view(ranks, part).float().sum(0).to(x.dtype)
    dist.all_gather(list(padded.chunk(ranks)), mine)
    x.copy_(padded[:n])
"""


def _changed(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


MUTANTS = {
    "kept_bytes": [
        (
            "forgets that silu's output is a factor",
            "both of its factors",
            _changed(_KEPT, ("4 * hidden", "3 * hidden")),
        ),
        (
            "keeps the input once for each of query, key and value",
            "How often is it there",
            _changed(_KEPT, ("attention = 2 * width", "attention = 4 * width")),
        ),
        (
            "repeats keys and values for every head",
            "how wide are keys and values",
            _changed(_KEPT, ("2 * kv", "2 * width")),
        ),
        (
            "forgets the log-sum-exp",
            "one number for each query",
            _changed(_KEPT, (" + heads", "")),
        ),
        (
            "forgets the norms' statistics",
            "its mean and its scale",
            _changed(_KEPT, ("2 * (width + 2)", "2 * width")),
        ),
        (
            "counts in floats",
            "whole number of bytes",
            _changed(_KEPT, ("return 4 * tokens", "return 4.0 * tokens")),
        ),
    ],
    "saved_bytes": [
        (
            "adds up all saved tensors",
            "sum over all saved tensors",
            """
def saved_bytes(forward, known):
    total = 0
    def pack(tensor):
        nonlocal total
        total += tensor.nbytes
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return total
""",
        ),
        (
            "counts the weights",
            "in `known`",
            _changed(_SAVED, ("for tensor in known}", "for tensor in ()}")),
        ),
        (
            "counts a view's own bytes",
            "keeps its whole storage alive",
            _changed(
                _SAVED,
                ("storages[id(storage)] = storage", "storages[id(storage)] = tensor"),
                ("storage.nbytes() for", "storage.numel() * storage.element_size() for"),
            ),
        ),
        (
            "tells tensors apart, not storages",
            "counted twice",
            _changed(
                _SAVED,
                (
                    "storages[id(storage)] = storage",
                    "storages[(id(storage), tensor.shape, tensor.stride())] = storage",
                ),
            ),
        ),
        (
            "gives the backward pass something else",
            "the backward pass gives other gradients",
            _changed(_SAVED, ("lambda tensor: tensor", "lambda tensor: torch.ones_like(tensor)")),
        ),
    ],
    "scaler": [
        (
            "each rank decides for itself",
            "some ranks stepped and others did not",
            _changed(_SCALER, ("        dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n", "")),
        ),
        (
            "steps in spite of the overflow",
            "When may it step",
            _changed(_SCALER, ("            return False\n", "            pass\n")),
        ),
        (
            "never unscales",
            "What does the optimizer see as gradient",
            _changed(_SCALER, ("g /= self.factor", "pass")),
        ),
        (
            "does not count anew after an overflow",
            "which event sets that count to zero",
            _changed(
                _SCALER,
                (
                    "self.factor, self.good_steps = self.factor / 2, 0",
                    "self.factor = self.factor / 2",
                ),
            ),
        ),
        (
            "grows with every good step after the first few",
            "which event sets that count to zero",
            _changed(
                _SCALER,
                (
                    "self.factor, self.good_steps = self.factor * 2, 0",
                    "self.factor, self.good_steps = self.factor * 2, self.growth_interval - 1",
                ),
            ),
        ),
        (
            "sends all gradients",
            "or one thing about them",
            _changed(
                _SCALER,
                (
                    "bad = torch.tensor([float(not all(g.isfinite().all() for g in gradients))])",
                    "bad = torch.cat([1.0 - g.isfinite().float() for g in gradients])",
                ),
                ("bool(bad)", "bool(bad.max())"),
            ),
        ),
    ],
    "all_reduce_16": [
        (
            "is a plain all-reduce",
            "one rounding makes at most 0.5",
            """
def all_reduce_16(x):
    dist.all_reduce(x)
""",
        ),
        (
            "reduces in float32",
            "float32 that travels",
            """
def all_reduce_16(x):
    wide = x.float()
    dist.all_reduce(wide)
    x.copy_(wide)
""",
        ),
        (
            "sends everybody everything",
            "or only a part of it",
            """
def all_reduce_16(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    x.copy_(torch.stack(everything).float().sum(0))
""",
        ),
        (
            "adds up in 16 bits where the numbers arrive",
            "one rounding makes at most 0.5",
            _changed(
                _REDUCE,
                (
                    "arrived.view(ranks, part).float().sum(0).to(x.dtype)",
                    "sum(arrived.view(ranks, part).unbind())",
                ),
            ),
        ),
        (
            "leaves out the last numbers",
            "or left out",
            """
def all_reduce_16(x):
    ranks = dist.get_world_size()
    part = x.numel() // ranks
    whole = x[: part * ranks]
    arrived = torch.empty_like(whole)
    dist.all_to_all_single(arrived, whole.clone())
    mine = arrived.view(ranks, part).float().sum(0).to(x.dtype)
    dist.all_gather(list(whole.chunk(ranks)), mine)
""",
        ),
        (
            "returns the sum and leaves x alone",
            "written into x",
            """
def all_reduce_16(x):
    wide = x.float()
    dist.all_reduce(wide)
    return wide.bfloat16()
""",
        ),
    ],
}
