"""The checks of lesson 15: checkpoints in halves, attention in a window, the best cuts of an unequal chain,
a diagnosis, a choice.
"""

# In the order of the notebook.
EXERCISES = (
    "checkpoint_in_halves",
    "attention_in_a_window",
    "cut_a_chain",
    "diagnose_recompute",
    "choose_activation_memory",
)
