"""The checks of lesson 08b: LARS on flat shards, clipping over shards, a diagnosis of clipping, when a batch grows."""

# In the order of the notebook.
EXERCISES = (
    "flat_lars",
    "clip_gradients",
    "diagnose_clipping",
    "choose_growth",
)
