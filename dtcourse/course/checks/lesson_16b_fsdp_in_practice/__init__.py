"""The checks of lesson 16b: from one layout to the other, a diagnosis, a choice of what lies on the host."""

# In the order of the notebook.
EXERCISES = (
    "flat_to_rows",
    "diagnose_resume",
    "choose_host",
)
