"""The checks of lesson 11b: a mean in one bit there and back, a decision that is run, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "one_bit_mean",
    "choose_warm_up",
    "diagnose_one_bit",
)
