"""The checks of lesson 08: a run that counts samples, the best batch."""

# In the order of the notebook.
EXERCISES = (
    "train_by_samples",
    "choose_batch",
)
