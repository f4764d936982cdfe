"""The checks of lesson 17: an inner stage, operators on two ranks, a diagnosis, a table with one owner."""

# In the order of the notebook.
EXERCISES = (
    "inner_stage",
    "place_operators",
    "diagnose",
    "one_owner",
)
