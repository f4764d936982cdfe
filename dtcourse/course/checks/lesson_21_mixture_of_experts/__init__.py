"""The checks of lesson 21: a router for several nodes, a diagnosis, and a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "node_limited_router",
    "diagnose_mixture",
    "choose_update",
)
