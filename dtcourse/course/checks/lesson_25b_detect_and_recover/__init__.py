"""The checks of lesson 25b: all ranks save and leave after one step."""

# In the order of the notebook.
EXERCISES = ("leave_together",)
