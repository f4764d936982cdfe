"""The checks of lesson 09: servers with unequal links, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "push_and_pull",
    "diagnose_server",
    "choose_cluster",
)
