"""The checks of lesson 21b: a thriftier exchange and its backward, a decision, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "mixture_once",
    "choose_exchange",
    "diagnose_experts",
)
