"""The checks of lesson 10b: a decision between graphs and periods."""

# In the order of the notebook.
EXERCISES = ("choose_meeting",)
