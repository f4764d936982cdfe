"""Answers written as another answer with some changes."""


def edited(code: str, *changes: tuple[str, str]) -> str:
    """The code, but for these changes, (right, wrong): each is at exactly one place in it."""
    for right, wrong in changes:
        assert code.count(right) == 1, f"{code.count(right)} times there: {right}"
        code = code.replace(right, wrong)
    return code


def changed(code: str, right: str, wrong: str) -> str:
    """The code with one change."""
    return edited(code, (right, wrong))
