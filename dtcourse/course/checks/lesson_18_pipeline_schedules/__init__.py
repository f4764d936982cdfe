"""The checks of lesson 18: PipeDream with two versions of the weights, an order and a cut, a diagnosis of timelines."""

# In the order of the notebook.
EXERCISES = ("two_versions", "choose_cut", "diagnose_timeline")
