"""The checks of lesson 24: an analyser of records, and a decision that is run: how often to look."""

# In the order of the notebook.
EXERCISES = ("who_waits", "choose_looks")
