"""The checks of lesson 23: a diagnosis of traces."""

# In the order of the notebook.
EXERCISES = ("limiting_cause",)
