"""The checks of lesson 02: numbering, halo exchange, broadcast tree, groups of a grid, a hang,
ranks placed on nodes.
"""

# In the order of the notebook.
EXERCISES = (
    "meet",
    "exchange_both",
    "tree_broadcast",
    "grid_groups",
    "diagnose_hang",
    "share_nodes",
)
