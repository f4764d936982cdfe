"""Sketches: linear pictures of a vector, so that the sum of all ranks' sketches is the sketch of their sum.

In the order in which to read them:

    count_sketch.py       each number is added, with a sign, to one place in each of a few short rows
    sketched_top_k.py     the largest numbers of the sum, found in the sum of the sketches (SketchedSGD)
    random_projection.py  each block of numbers in a few directions that all ranks draw alike

Everything goes through all_reduce, and takes the same bytes for any number of ranks' largest numbers; TopK, whose ranks
keep different places, has to gather them (sparse/top_k.py).
"""
