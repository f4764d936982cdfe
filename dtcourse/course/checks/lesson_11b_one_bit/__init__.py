"""The checks of lesson 11b: one bit per number, with which training gets where fp32 gets."""

# In the order of the notebook.
EXERCISES = ("one_bit_that_arrives",)
