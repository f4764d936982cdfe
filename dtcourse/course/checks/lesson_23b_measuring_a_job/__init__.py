"""The checks of lesson 23b: utilisation from counted products, and an interval for a speed-up."""

# In the order of the notebook.
EXERCISES = ("utilisation", "speed_up")
