"""The checks of lesson 12: a thriftier mean of sparse vectors, a diagnosis, a decision that is run."""

# In the order of the notebook.
EXERCISES = ("mean_by_ranges", "diagnose_feedback", "choose_sparse")
