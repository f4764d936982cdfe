"""Fewer numbers: some travel whole, with where they are, and the rest waits (error feedback).

In the order in which to read them:

    selection.py      the k largest of many, by a sample
    top_k.py          the largest numbers, or some that all ranks draw alike
    thresholds.py     what is above a threshold: fixed, sampled, or kept while it fits
    blocks.py         blocks and rows of largest norm
    deep_gradient.py  deep gradient compression, whole: momentum that is kept where nothing is sent; its rules are in
                      deep_gradient_rules.py
"""
