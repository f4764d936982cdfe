"""The checks of lesson 21: a router for several nodes, and a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "node_limited_router",
    "diagnose_mixture",
)
