"""The checks of lesson 20: another order on the ring, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "striped_attention",
    "diagnose_attention",
    "choose_degrees",
)
