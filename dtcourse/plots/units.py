"""Numbers with units as people read them: three digits and a prefix."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def bytes_text(n: float, *, binary: bool = True) -> str:
    """1536 -> "1.5 KiB"; with binary=False powers of 1000, as makers of devices and networks count: "1.54 kB"."""
    if binary:
        return _scaled(n, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    return _scaled(n, 1000, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def seconds_text(seconds: float) -> str:
    """0.0031 -> "3.1 ms"; from two minutes on in minutes, hours, days or years."""
    size = abs(seconds)
    for limit, factor, name in (
        (2 * 365.25 * 86400, 365.25 * 86400, "years"),
        (2 * 86400, 86400, "days"),
        (2 * 3600, 3600, "h"),
        (120, 60, "min"),
    ):
        if size >= limit:
            return f"{_digits(seconds / factor)} {name}"
    for unit, name in _SMALL:
        if size >= 0.9995 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return "0 s" if seconds == 0 else f"{_digits(seconds * 1e9)} ns"


def count_text(n: float) -> str:
    """124439808 -> "124 M"; B for 10^9 and T for 10^12, as parameters are counted."""
    return _scaled(n, 1000, ("", "k", "M", "B", "T"))


def flops_text(n: float) -> str:
    """3.14e23 -> "314 ZFLOP" (operations, not operations a second)."""
    return _scaled(
        n, 1000, ("FLOP", *(f"{p}FLOP" for p in ("k", "M", "G", "T", "P", "E", "Z", "Y")))
    )


def plain_text(value: float) -> str:
    """A number without a unit, three digits of it; whole numbers below 10,000 as they are."""
    if float(value).is_integer() and abs(value) < 10_000:
        return f"{int(value)}"
    return _digits(value) if 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def formatter(unit: str | None) -> Callable[[float], str]:
    """The function that writes a value of this unit: "bytes" (KiB), "decimal bytes" (kB), "seconds", "count",
    "flops", "percent", None or a word.
    """
    known: dict[str | None, Callable[[float], str]] = {
        "bytes": bytes_text,
        "decimal bytes": functools.partial(bytes_text, binary=False),
        "seconds": seconds_text,
        "count": count_text,
        "flops": flops_text,
        "percent": lambda value: f"{100 * value:.3g}%",
        None: plain_text,
        "": plain_text,
    }
    return known.get(unit, lambda value: f"{plain_text(value)} {unit}")


def time_unit(span: float) -> tuple[float, str]:
    """(seconds per unit, its name) in which `span` seconds read well on an axis."""
    for unit, name in _SMALL:
        if span >= 2 * unit:
            return unit, name
    return _SMALL[-1]


def _scaled(n: float, base: int, names: tuple[str, ...]) -> str:
    power = 0
    # 999.6 would be written as 1000 (1023.7 as 1024): it belongs to the next prefix.
    while power < len(names) - 1 and abs(n) >= base - 0.5:
        n, power = n / base, power + 1
    return f"{_digits(n)} {names[power]}".strip()


def _digits(value: float) -> str:
    """Three significant digits, no exponent, no trailing zeros."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
