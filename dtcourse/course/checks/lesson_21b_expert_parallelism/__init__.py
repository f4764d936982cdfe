"""The checks of lesson 21b: a thriftier exchange, and a decision."""

# In the order of the notebook.
EXERCISES = (
    "mixture_once",
    "choose_exchange",
)
