"""The checks of lesson 25b: all ranks save and leave after one step; a decision on two kinds of saves."""

# In the order of the notebook.
EXERCISES = ("leave_together", "choose_saves")
