"""The checks of lesson 20: a backward that gathers again, and a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "gather_again",
    "diagnose_attention",
)
