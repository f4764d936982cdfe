"""The checks of lesson 26: a task's ranks, a diagnosis of jobs that came back, a decision."""

# In the order of the notebook.
EXERCISES = (
    "ranks_of_task",
    "diagnose_job",
    "choose_nodes",
)
