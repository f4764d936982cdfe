"""The checks of lesson 28b: masks among neighbours, shares of which some are wrong, a private gradient over ranks,
a diagnosis of what a server asked for, and a choice of clients and threshold.
"""

# In the order of the notebook.
EXERCISES = (
    "masked_sum",
    "joined",
    "private_gradient",
    "diagnose_rounds",
    "choose_round",
)
