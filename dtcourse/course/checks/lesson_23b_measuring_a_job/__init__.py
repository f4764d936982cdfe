"""The checks of lesson 23b: utilisation from counted products."""

# In the order of the notebook.
EXERCISES = ("utilisation",)
