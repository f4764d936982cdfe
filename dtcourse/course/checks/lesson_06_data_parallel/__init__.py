"""The checks of lesson 06: DDP with buckets, a decision, a diagnosis."""

# In the order of the notebook.
EXERCISES = ("ddp_with_buckets", "choose_step", "diagnose_step")
