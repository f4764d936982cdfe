"""The checks of lesson 12: a thriftier mean of sparse vectors, and a diagnosis."""

# In the order of the notebook.
EXERCISES = ("mean_by_ranges", "diagnose_feedback")
