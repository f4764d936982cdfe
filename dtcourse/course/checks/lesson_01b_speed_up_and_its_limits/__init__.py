"""The checks of lesson 01b: Amdahl's law, a choice of ranks per run, a choice of ranks to rent, a diagnosis of logs."""

# In the order of the notebook.
EXERCISES = (
    "amdahl",
    "ranks_per_run",
    "ranks_to_rent",
    "diagnose_speed_up",
)
