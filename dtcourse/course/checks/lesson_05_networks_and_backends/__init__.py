"""The checks of lesson 05: a link from measurements, bus bandwidth, the number of spines."""

# In the order of the notebook.
EXERCISES = (
    "fit_link",
    "bus_bandwidth",
    "spines_needed",
)
