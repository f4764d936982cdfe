"""The checks of lesson 20: a backward that gathers again, a diagnosis, and a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "gather_again",
    "diagnose_attention",
    "choose_axes",
)
