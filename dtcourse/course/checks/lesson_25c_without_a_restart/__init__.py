"""The checks of lesson 25c: gradients that any ranks may be missing from, a decision on two kinds of saves."""

# In the order of the notebook.
EXERCISES = ("code_gradients", "choose_saves")
