"""`python -m dtcourse.cli`: the same as the command dtcourse."""

from dtcourse.cli import app

app(prog_name="dtcourse")
