"""The checks of lesson 29: a training ported to PyTorch's classes, silent mistakes, who sends what, which wrapper."""

# In the order of the notebook.
EXERCISES = ("port_training", "diagnose_silent", "who_sends", "choose_wrapper")
