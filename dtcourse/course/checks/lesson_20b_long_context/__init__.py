"""The checks of lesson 20b: another order on the ring, a decision that is run, and a diagnosis of a cut."""

# In the order of the notebook.
EXERCISES = (
    "striped_attention",
    "choose_attention",
    "diagnose_cut",
)
