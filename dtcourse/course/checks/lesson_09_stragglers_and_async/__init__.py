"""The checks of lesson 09: servers with unequal links, a decision."""

# In the order of the notebook.
EXERCISES = (
    "push_and_pull",
    "choose_cluster",
)
