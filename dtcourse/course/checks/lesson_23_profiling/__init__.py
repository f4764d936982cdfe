"""The checks of lesson 23: a diagnosis of traces, clocks that are off and drift, and a decision that is run."""

# In the order of the notebook.
EXERCISES = ("limiting_cause", "one_clock", "two_changes")
