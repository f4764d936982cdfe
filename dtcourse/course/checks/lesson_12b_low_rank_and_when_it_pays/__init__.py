"""The checks of lesson 12b: PowerSGD of a whole model, the ranks of its matrices, and a diagnosis."""

# In the order of the notebook.
EXERCISES = ("low_rank_means", "choose_low_ranks", "diagnose_low_rank")
