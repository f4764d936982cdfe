"""The checks of lesson 21b: a thriftier exchange, a decision that is run, and a diagnosis from gradients."""

# In the order of the notebook.
EXERCISES = (
    "mixture_once",
    "choose_exchange",
    "diagnose_experts",
)
