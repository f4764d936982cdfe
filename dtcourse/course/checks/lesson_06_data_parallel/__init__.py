"""The checks of lesson 06: DDP with buckets, a decision."""

# In the order of the notebook.
EXERCISES = ("ddp_with_buckets", "choose_step")
