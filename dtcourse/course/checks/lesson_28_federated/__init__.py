"""The checks of lesson 28: a round in one sum, SCAFFOLD's variates, a diagnosis, a choice."""

# In the order of the notebook.
EXERCISES = (
    "round_in_one",
    "one_up",
    "diagnose_means",
    "choose_method",
)
