"""The checks of lesson 25b: leaving after one step, a decision on two kinds of saves, a diagnosis of runs."""

# In the order of the notebook.
EXERCISES = ("leave_together", "choose_saves", "what_happened")
