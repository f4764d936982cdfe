"""The checks of lesson 13b: a decision that is run, a diagnosis, and a mean that servers help to make."""

# In the order of the notebook.
EXERCISES = (
    "choose_sending",
    "diagnose_lazy",
    "mean_beside_servers",
)
