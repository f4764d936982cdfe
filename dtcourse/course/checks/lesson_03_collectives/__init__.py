"""The checks of lesson 03: all-gather both ways, moments in one message, a transpose's gradient, a decision,
a diagnosis.
"""

# In the order of the notebook.
EXERCISES = (
    "all_gather_both_ways",
    "mean_and_variance",
    "transpose",
    "choose_collectives",
    "diagnose_calls",
)
