"""The checks of lesson 10: push-sum on a directed graph, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "push_sum",
    "diagnose_outer",
)
