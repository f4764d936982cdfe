"""The checks of lesson 02: strangers number themselves, a halo exchange, a broadcast tree, the groups of a grid."""

# In the order of the notebook.
EXERCISES = (
    "meet",
    "exchange_both",
    "tree_broadcast",
    "grid_groups",
)
