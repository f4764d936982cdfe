"""The checks of lesson 16: flat parts, buckets to owners, rows, a diagnosis, a choice."""

# In the order of the notebook.
EXERCISES = (
    "flat_zero_1",
    "buckets_to_owners",
    "forward_in_rows",
    "diagnose_shards",
    "choose_sharding",
)
