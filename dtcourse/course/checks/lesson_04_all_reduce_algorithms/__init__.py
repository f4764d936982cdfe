"""The checks of lesson 04: the ring under PyTorch's DDP, an algorithm chosen by its cost, recursive doubling."""

# In the order of the notebook.
EXERCISES = (
    "ring_under_ddp",
    "choose_algorithm",
    "recursive_doubling",
)
