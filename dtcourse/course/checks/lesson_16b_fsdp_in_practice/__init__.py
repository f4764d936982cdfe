"""The checks of lesson 16b: from one layout to the other, a diagnosis of resumed runs."""

# In the order of the notebook.
EXERCISES = (
    "flat_to_rows",
    "diagnose_resume",
)
