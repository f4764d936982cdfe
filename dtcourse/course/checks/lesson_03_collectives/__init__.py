"""The checks of lesson 03: an all-gather on a budget, moments in one message, a transpose over the network."""

# In the order of the notebook.
EXERCISES = (
    "all_gather_on_a_budget",
    "mean_and_variance",
    "transpose",
)
