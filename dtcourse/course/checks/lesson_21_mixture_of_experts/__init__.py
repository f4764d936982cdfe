"""The checks of lesson 21: a thriftier exchange, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "mixture_once",
    "diagnose_mixture",
    "choose_exchange",
)
