"""The checks of lesson 19: a fused SwiGLU, the largest words of a cut vocabulary, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "fused_swiglu",
    "largest_words",
    "diagnose_region",
    "choose_ranks",
)
