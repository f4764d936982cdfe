import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtcourse import plots
from dtcourse.plots import units


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1020 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (16 * 2**20, "16 MiB"), (80e9, "74.5 GiB"), (2**40 - 1, "1 TiB")],
)  # fmt: skip
def test_bytes(n, text):
    if n == 1023:
        text = "1023 B"  # whole bytes are exact
    assert plots.bytes_text(n) == text


def test_decimal_bytes_counts_and_flops():
    assert plots.bytes_text(1536, binary=False) == "1.54 kB"
    assert plots.bytes_text(80e9, binary=False) == "80 GB"
    assert plots.count_text(124_439_808) == "124 M"
    assert plots.count_text(999_600) == "1 M"
    assert plots.count_text(175e9) == "175 B"
    assert plots.count_text(12) == "12"
    assert plots.flops_text(3.14e23) == "314 ZFLOP"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0031, "3.1 ms"), (2.5e-6, "2.5 µs"), (3e-10, "0.3 ns"), (0.9999, "1 s"), (59, "59 s"), (150, "2.5 min"), (7200, "2 h"), (172800, "2 days"), (3 * 365.25 * 86400, "3 years")],
)  # fmt: skip
def test_seconds(seconds, text):
    assert plots.seconds_text(seconds) == text


@given(st.floats(1e-12, 1e15))
def test_texts_say_the_number_to_three_digits(value):
    factors = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}  # fmt: skip
    number, unit = plots.seconds_text(value).split()
    assert math.isclose(float(number) * factors[unit], value, rel_tol=0.0051)
    powers = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}
    if value >= 1:
        number, unit = plots.bytes_text(round(value)).split()
        assert math.isclose(float(number) * 1024 ** powers[unit], round(value), rel_tol=0.0051)


def test_formatter_takes_a_word():
    assert units.formatter("GB/s")(12.345) == "12.3 GB/s"
    assert units.formatter("percent")(0.125) == "12.5%"
    assert units.formatter(None)(1234) == "1234"
    assert units.formatter(None)(0.00001234) == "1.23e-05"
