"""Measuring what a step really does: where its bytes live, and what its time is spent on.

memory.py            what a model holds: parameters, gradients, optimizer states, buffers, saved activations
memory_tracker.py    every storage of a step from birth to death
memory_history.py    what the tracker saw, as data: the curve, the peak and what was alive at it, a trace for an allocator
"""
