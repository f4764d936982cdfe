"""The checks of lesson 24: eight broken programs, an analyser of records, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = ("repair_programs", "who_waits", "diagnose_quiet", "choose_looks")
