"""What Kubernetes lets a thing be called."""

from __future__ import annotations

import re
from typing import Any

A_LABEL = "lower-case letters, digits and dashes, a letter first, no dash last, at most 63 of them"
A_PART = "lower-case letters, digits and dashes, no dash first or last, at most 63 of them"
A_SUBDOMAIN = f"one or more parts between dots, each of {A_PART}"
AN_IMAGE = "a container image, as docker and podman write it: name:tag, registry.example/name:tag or name@sha256:..."

A_TAINT = "as kubectl writes it: key, key=value, key:NoSchedule or key=value:NoExecute"


def is_label(text: Any) -> bool:
    """A DNS label that begins with a letter (RFC 1035): what a Service or a TrainJob may be called."""
    return is_part(text) and text[0].isalpha()


def is_part(text: Any) -> bool:
    """A DNS label (RFC 1123): what a namespace may be called, or a Pod's host."""
    return _is(text, "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_subdomain(text: Any) -> bool:
    """A DNS subdomain (RFC 1123): what most other things may be called."""
    return isinstance(text, str) and len(text) <= 253 and all(map(is_part, text.split(".")))


def is_resource(text: Any) -> bool:
    """A resource that a device plugin offers: the vendor's domain, a slash, a name."""
    vendor, slash, name = text.partition("/") if isinstance(text, str) else ("", "", "")
    return (
        bool(slash) and is_subdomain(vendor) and _is(name, r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
    )


def is_key(text: Any) -> bool:
    """The key of a label or a taint: a name, with or without a domain and a slash before it."""
    if not isinstance(text, str):
        return False
    domain, slash, name = text.rpartition("/")
    return (not slash or is_subdomain(domain)) and _is(
        name, r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
    )


def is_value(text: Any) -> bool:
    """The value of a label or a taint. It may be empty."""
    return _is(text, r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")


def is_taint(text: Any) -> bool:
    """A taint: key[=value][:effect]."""
    if not isinstance(text, str):
        return False
    rest, colon, effect = text.partition(":")
    key, _, value = rest.partition("=")
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    return (not colon or effect in effects) and is_key(key) and is_value(value)


def is_folder(text: Any) -> bool:
    """A folder in a container: an absolute path, not the root itself, without `..` and without a colon."""
    parts = text.strip("/").split("/") if isinstance(text, str) else [""]
    return _is(text, r"/[^\0:]+") and not {"", ".", ".."} & set(parts) and text.isprintable()


def is_image(text: Any) -> bool:
    """A container image: [host[:port]/]path[:tag][@digest]."""
    path = "[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
    host = r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?"
    return _is(text, rf"{host}{path}(?:/{path})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")


def _is(text: Any, form: str) -> bool:
    return isinstance(text, str) and re.fullmatch(form, text, re.ASCII) is not None
