"""The checks of lesson 18: PipeDream with two versions of the weights, a diagnosis of timelines."""

# In the order of the notebook.
EXERCISES = ("two_versions", "diagnose_timeline")
