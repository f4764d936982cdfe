"""The checks of lesson 16: bytes of each stage, an optimizer shared out, gradients that go home, a sharded layer."""

# In the order of the notebook.
EXERCISES = (
    "bytes_on_ranks",
    "zero_1",
    "gradients_go_home",
    "sharded_linear",
)
