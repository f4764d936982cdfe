"""Cases of pairs with something less, for one that fails; and a failing one in print, as a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz.pairs import Case, complaints
from tests.fuzz.written import written


def simpler(case: Case) -> Iterator[Case]:
    """Cases with something less, the largest cuts first."""
    task, config = case.task, case.task.config
    found = [replace(case, target=case.source)]
    found += [replace(case, task=replace(task, frozen=less)) for less in fewer(task.frozen)]
    found += [replace(case, task=replace(task, unused=False))]
    for name, plain in PLAIN.items():
        if getattr(config, name) != plain:
            changed = replace(config, **{name: plain})  # type: ignore[arg-type]
            found.append(replace(case, task=replace(task, config=changed)))
    for which in ("source", "target"):
        grid = getattr(case, which)
        for plainer in (replace(grid, schedule="GPipe"), replace(grid, expert_first=False)):
            found.append(replace(case, **{which: plainer}))
    return (one for one in found if one != case and one.fits())


def fewer(numbers: frozenset[int]) -> list[frozenset[int]]:
    return [frozenset()] + [numbers - {one} for one in sorted(numbers)] if numbers else []


PLAIN = {
    "n_layers": 1,
    "n_kv_heads": None,
    "tied": False,
    "bias": False,
    "positions": "learned",
    "norm": "rms",
    "mlp": "gelu",
    "shared_experts": 0,
    "balancing": 0.0,
    "vocab": 5,
}

SCRIPT = """\
PYTHONPATH=. .venv/bin/python - <<'END'
from dtcourse.models import TransformerConfig
from tests.fuzz.pairs import Case
from tests.fuzz.simpler_pairs import tell
from tests.pairs.grid import Grid, Task

tell(
    {case},
)
END"""


def shown(case: Case, said: str) -> str:
    """In words, what is wrong with it, and the script that says so again."""
    return f"{case}\n{said}\n\n{SCRIPT.format(case=written(case, '    '))}"


def tell(case: Case) -> None:
    """What a printed script calls."""
    print(case, complaints([case])[0] or "is right", sep="\n")
