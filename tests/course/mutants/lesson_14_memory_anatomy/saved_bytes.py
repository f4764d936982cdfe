"""Answers to saved_bytes: see test_exercises.py."""

from tests.course.edits import edited

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

MUTANTS = [
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
        edited(_SAVED, ("for tensor in known}", "for tensor in ()}")),
    ),
    (
        "counts a view's own bytes",
        "keeps its whole storage alive",
        edited(
            _SAVED,
            ("storages[id(storage)] = storage", "storages[id(storage)] = tensor"),
            ("storage.nbytes() for", "storage.numel() * storage.element_size() for"),
        ),
    ),
    (
        "tells tensors apart, not storages",
        "counted twice",
        edited(
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
        edited(_SAVED, ("lambda tensor: tensor", "lambda tensor: torch.ones_like(tensor)")),
    ),
]

NOTHING = [
    (
        "counts nothing",
        """
def saved_bytes(forward, known):
    forward()
    return 0
""",
    ),
    (
        "the course's counter",
        """
from dtcourse.profiling.memory import SavedTensors


def saved_bytes(forward, known):
    with SavedTensors(None, known) as saved:
        forward()
    return saved.bytes
""",
    ),
]

ACCEPTED = [
    (
        "storages by their address, kept alive",
        """
def saved_bytes(forward, known):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.detach()) or t, lambda t: t):
        forward()
    there = {t.untyped_storage().data_ptr() for t in known}
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(size for address, size in sizes.items() if address not in there)
""",
    ),
    (
        "hooks that hand out numbers, not tensors",
        """
def saved_bytes(forward, known):
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return len(saved) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
        forward()
    counted = {tensor.untyped_storage()._cdata for tensor in known}
    total = 0
    for storage in [tensor.untyped_storage() for tensor in saved]:
        total += storage.nbytes() * (storage._cdata not in counted)
        counted.add(storage._cdata)
    return total
""",
    ),
]
