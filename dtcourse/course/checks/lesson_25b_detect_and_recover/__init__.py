"""The checks of lesson 25b: leaving after one step, a diagnosis of runs."""

# In the order of the notebook.
EXERCISES = ("leave_together", "what_happened")
