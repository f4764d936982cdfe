"""The checks of lesson 12b: PowerSGD of a whole model, and a diagnosis."""

# In the order of the notebook.
EXERCISES = ("low_rank_means", "diagnose_low_rank")
