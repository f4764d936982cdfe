"""The checks of lesson 22: a step on three axes by hand, a diagnosis."""

# In the order of the notebook.
EXERCISES = ("mesh_step", "diagnose_axis")
