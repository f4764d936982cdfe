"""The checks of lesson 23: a diagnosis of traces, and clocks that are off and drift."""

# In the order of the notebook.
EXERCISES = ("limiting_cause", "one_clock")
