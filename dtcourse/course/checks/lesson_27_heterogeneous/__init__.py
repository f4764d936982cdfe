"""The checks of lesson 27: two means in one backward, the quickest shares, a diagnosis, a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "two_means",
    "quickest_shares",
    "diagnose_balance",
    "choose_patience",
)
