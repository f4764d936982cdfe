import re

import pandas as pd
import pytest

from dtcourse import plots

ROWS = [
    {"layout": "DDP", "bytes": 2 * 2**30, "seconds": 1.23456},
    {"layout": "ZeRO 3", "bytes": 2**29, "seconds": 12},
]


def test_text_is_aligned_and_formatted():
    table = plots.table(
        ROWS, formats={"bytes": plots.bytes_text}, caption="Two layouts", highlight=1
    )
    assert str(table) == (
        "Two layouts\n"
        "layout    bytes  seconds\n"
        "------  -------  -------\n"
        "DDP       2 GiB     1.23\n"
        "ZeRO 3  512 MiB       12  <"
    )


def test_html_says_the_same_and_sets_no_colour():
    html = plots.table(ROWS, highlight=[1])._repr_html_()
    assert re.findall(r"<td[^>]*>([^<]*)</td>", html) == [
        "DDP", "2,147,483,648", "1.23", "ZeRO 3", "536,870,912", "12",
    ]  # fmt: skip
    assert re.findall(r"<th[^>]*>([^<]*)</th>", html) == ["layout", "bytes", "seconds"]
    assert "background" not in html
    assert not re.search(r"color:(?!inherit)", html)  # the page's own: light and dark alike
    assert html.count("font-weight:bold") == 3


def test_html_is_escaped():
    html = plots.table([("<b>&", 1)], columns=["<x>", "y"], caption="a < b")._repr_html_()
    assert "<b>" not in html
    assert "<x>" not in html
    assert "&lt;b&gt;&amp;" in html


@pytest.mark.parametrize(
    "rows",
    [
        {"DDP": {"s": 1}, "FSDP": {"s": 2}},
        [{"": "DDP", "s": 1}, {"": "FSDP", "s": 2}],
        pd.DataFrame({"": ["DDP", "FSDP"], "s": [1, 2]}),
    ],
)
def test_rows_of_every_kind(rows):
    assert str(plots.table(rows)).split() == ["s", "----", "-", "DDP", "1", "FSDP", "2"]


def test_columns_are_chosen_ordered_and_may_be_missing():
    table = plots.table([{"a": 1, "b": True}, {"a": 0.5, "c": None}], columns=["b", "a"])
    assert table.columns == ["b", "a"]
    assert table.rows == [["yes", "1"], ["", "0.5"]]


def test_mistakes():
    with pytest.raises(ValueError, match="the column 'sec'; the columns are layout"):
        plots.table(ROWS, formats={"sec": "{}"})
    with pytest.raises(ValueError, match=r"rows 0 to 1; got \[2\]"):
        plots.table(ROWS, highlight=2)
    with pytest.raises(ValueError, match="a row of 2 values"):
        plots.table([(1, 2)], columns=["a"])
    with pytest.raises(ValueError, match="needs rows"):
        plots.table([])
