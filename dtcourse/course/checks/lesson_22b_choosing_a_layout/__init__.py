"""The checks of lesson 22b: two decisions, both judged by running them: stages and their order, a layout."""

# In the order of the notebook.
EXERCISES = ("balance_stages", "choose_layout")
