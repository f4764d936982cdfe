"""The checks of lesson 24b: eight broken programs, and a diagnosis of runs that are quietly wrong."""

# In the order of the notebook.
EXERCISES = ("repair_programs", "diagnose_quiet")
