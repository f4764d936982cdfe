"""The checks of lesson 22: a step on three axes by hand."""

# In the order of the notebook.
EXERCISES = ("mesh_step",)
