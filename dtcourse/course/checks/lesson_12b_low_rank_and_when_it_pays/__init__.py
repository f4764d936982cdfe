"""The checks of lesson 12b: PowerSGD of a whole model, and the ranks of its matrices."""

# In the order of the notebook.
EXERCISES = ("low_rank_means", "choose_low_ranks")
