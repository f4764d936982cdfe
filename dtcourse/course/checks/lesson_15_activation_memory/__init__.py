"""The checks of lesson 15: a checkpoint with its random state, attention in tiles, the best cuts of an unequal chain."""

# In the order of the notebook.
EXERCISES = (
    "checkpoint_with_random_state",
    "attention_in_tiles",
    "cut_a_chain",
)
