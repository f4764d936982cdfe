"""The checks of lesson 23: utilisation from counted products, and a diagnosis of traces."""

# In the order of the notebook.
EXERCISES = ("utilisation", "limiting_cause")
