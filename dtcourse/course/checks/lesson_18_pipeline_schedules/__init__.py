"""The checks of lesson 18: a schedule under a bound of memory, a backward in halves, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "half_the_memory",
    "swiglu_in_halves",
    "diagnose_timeline",
    "choose",
)
