"""Manifests as YAML that every reader of YAML reads alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def to_yaml(manifests: Iterable[dict[str, Any]]) -> str:
    """The manifests as one file for kubectl.

    Whatever some reader of YAML might take for something else than text stands between quotation marks: PyYAML alone
    would write a learning rate of "1e-3" without, and Go's YAML, Kubernetes' own, reads that as a number.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        looks_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9./-]*", value) is not None
        plain = looks_plain and value.lower() not in _WORDS_OF_YAML
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, None if plain else '"')

    Dumper.add_representer(str, text)
    # The same list twice in one manifest is written twice, not once and a reference to it.
    Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
    return yaml.dump_all(
        list(manifests), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100_000
    )


_WORDS_OF_YAML = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}
