"""The checks of lesson 09b: a diagnosis of servers' logs."""

# In the order of the notebook.
EXERCISES = ("diagnose_server",)
