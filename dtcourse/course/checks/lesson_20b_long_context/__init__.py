"""The checks of lesson 20b: another balanced order, and a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "striped_attention",
    "choose_attention",
)
