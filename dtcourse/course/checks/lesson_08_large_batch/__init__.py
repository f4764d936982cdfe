"""The checks of lesson 08: a run that counts samples, the best batch, logs of runs that do not do as planned."""

# In the order of the notebook.
EXERCISES = (
    "train_by_samples",
    "choose_batch",
    "diagnose_large_run",
)
