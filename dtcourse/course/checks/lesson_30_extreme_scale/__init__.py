"""The checks of lesson 30: the cheapest plan in time, published runs, a diagnosis of plans, a decision that is run."""

# In the order of the notebook.
EXERCISES = ("cheapest_plan", "explain_runs", "diagnose_plan", "choose_size")
