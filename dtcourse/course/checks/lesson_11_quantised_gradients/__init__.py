"""The checks of lesson 11: a mean in one byte, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "mean_in_int8",
    "diagnose_quantiser",
    "choose_quantiser",
)
