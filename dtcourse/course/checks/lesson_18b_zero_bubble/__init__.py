"""The checks of lesson 18b: a schedule under a bound of memory, a backward in halves, a decision, a diagnosis."""

# In the order of the notebook.
EXERCISES = ("half_the_memory", "swiglu_in_halves", "choose", "diagnose_steps")
