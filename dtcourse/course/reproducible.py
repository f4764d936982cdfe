"""What differs from machine to machine in a printed text, and what stands for it in a saved one.

One table, used three times: `expect_error` prints with it, the normaliser of notebooks scrubs with it, and
nbval compares with it (tests/notebooks/sanitize.cfg is written from it).
"""

from __future__ import annotations

import re

# (name, pattern, what stands for it). Order matters: the first ones are the more particular.
REPLACEMENTS = [
    ("notebook-cell", r"(?:/[^\s\"':<>]*)?/ipykernel_\d+/\d+\.py", "this notebook"),
    ("notebook-input", r"<ipython-input-[^>]*>", "this notebook"),
    ("site-packages", r"/[^\s\"':<>]*?/(?:site|dist)-packages/", ""),
    ("standard-library", r"/[^\s\"':<>]*?/lib/python3\.\d+/", "python/"),
    ("package", r"(?<![\w.])/[^\s\"':<>]*?/(?=dtcourse/\w)", ""),
    (
        "temporary",
        r"(?<![\w.])(?:/private)?(?:/var/folders/[^\s\"':<>]+|/tmp/[^\s\"':<>]+)",
        "a temporary file",
    ),
    ("home", r"(?<![\w.])(?:/home/[^\s\"':<>/]+|/Users/[^\s\"':<>/]+|/root)(?=/|\b)", "~"),
    ("address", r"\b0x[0-9a-f]{6,16}\b", "0x…"),
    ("process", r"\b(?i:pid)[ =:]+\d+", "pid …"),
    (
        "port",
        r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=localhost:)\d{4,5}|(?<=\[::1\]:)\d{4,5}"
        r"|(?<=\bport: )\d{4,5}|(?<=\(192\.0\.2\.1, )\d{4,5}",
        "…",
    ),
    ("styler", r"(?<=T_)[0-9a-f]{5}(?=[_\" ])", "00000"),
]

# What a reader is shown as it is, and nbval does not compare: it runs each cell without counting it.
COMPARED_OTHERWISE = [
    ("cell-number", r"Cell In\[\d+\]", "Cell In[…]"),
    # recorded.py: whether a cell was run, and why not. What it found is compared.
    (
        "recorded",
        r"(?m)^(?:Run here|Not run: .*\nRecorded on 20\d\d-\d\d-\d\d):",
        "Run, here or elsewhere:",
    ),
]


def scrub(text: str) -> str:
    """The text with every address, machine path, process number and port replaced."""
    for _, pattern, stand_in in REPLACEMENTS:
        text = re.sub(pattern, stand_in, text)
    return text


def sanitize_config() -> str:
    """The same table as nbval reads it (--nbval-sanitize-with)."""
    lines = ["# Written by `python -m dtcourse.course.reproducible`; the table is in that file."]
    for name, pattern, stand_in in REPLACEMENTS + COMPARED_OTHERWISE:
        lines += ["", f"[{name}]", f"regex: {pattern}", f"replace: {stand_in}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(sanitize_config(), end="")
