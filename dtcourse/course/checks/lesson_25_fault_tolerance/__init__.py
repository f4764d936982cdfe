"""The checks of lesson 25: a save that survives."""

# In the order of the notebook.
EXERCISES = ("survive_cuts",)
