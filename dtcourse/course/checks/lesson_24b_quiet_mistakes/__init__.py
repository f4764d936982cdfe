"""The checks of lesson 24b: eight broken programs, a diagnosis of runs that are quietly wrong, and a decision that is
run: which checks, and how often.
"""

# In the order of the notebook.
EXERCISES = ("repair_programs", "diagnose_quiet", "choose_checks")
