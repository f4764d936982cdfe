"""The checks of lesson 12c: a decision on the ranks of a model's matrices."""

# In the order of the notebook.
EXERCISES = ("choose_low_ranks",)
