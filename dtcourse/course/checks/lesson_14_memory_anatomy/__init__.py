"""The checks of lesson 14: activations by formula and by hooks, a scaler for several ranks, 16 bits with one rounding."""

# In the order of the notebook.
EXERCISES = (
    "kept_bytes",
    "saved_bytes",
    "scaler",
    "all_reduce_16",
)
