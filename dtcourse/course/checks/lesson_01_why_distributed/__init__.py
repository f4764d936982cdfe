"""The checks of lesson 01: bytes against the memory wall, Amdahl's law fitted, gradients of uneven shares."""

# In the order of the notebook.
EXERCISES = (
    "memory_wall",
    "amdahl",
    "average_uneven",
)
