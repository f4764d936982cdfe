"""The states of all that draws random numbers in a rank: torch's, on the CPU and the GPU, numpy's and Python's.

A run that resumes with the weights alone draws other dropout masks and other augmentations from then on. With the
states too it draws what the undisturbed run would have drawn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dtcourse import device
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.parameters.seeds import seed_of


class RandomStates:
    """Saves and restores them, in state_dict's shape. Each rank has its own.

    generators: torch generators besides the default ones, by name: a model's own, say
    """

    def __init__(self, generators: Mapping[str, torch.Generator] | None = None) -> None:
        self.generators = dict(generators or {})

    def state_dict(self) -> dict[str, Any]:
        """All states, as tensors and numbers."""
        version, words, gauss = random.getstate()
        legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - it is what others draw from
        return {
            "python": (version, torch.tensor(words), gauss),
            "numpy": (
                torch.from_numpy(legacy["state"]["key"].astype(np.int64)),
                int(legacy["state"]["pos"]),
                int(legacy["has_gauss"]),
                float(legacy["gauss"]),
            ),
            "torch": device.random_state(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draws from now on what would have been drawn from there. ValueError for other generators."""
        self._check(state)
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        key, position, has_gauss, gauss = state["numpy"]
        numpy_state = ("MT19937", key.numpy().astype(np.uint32), position, has_gauss, gauss)
        np.random.set_state(numpy_state)  # noqa: NPY002
        device.set_random_state(state["torch"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])

    def load_elsewhere(self, states: Sequence[Mapping[str, Any]], rank: int) -> None:
        """On another number of ranks nobody's state fits: each draws by a seed that follows from the first one's."""
        self._check(states[0])
        seed = seed_of(int(digest(states[0]["torch"][0]), 16), [rank])
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)  # of a GPU too
        for name, generator in self.generators.items():
            generator.manual_seed(seed_of(seed, [name]) >> 1)

    def _check(self, state: Mapping[str, Any]) -> None:
        if state["generators"].keys() != self.generators.keys():
            raise ValueError(
                f"the checkpoint has states of the generators {sorted(state['generators'])}, this run has "
                f"{sorted(self.generators)}"
            )
