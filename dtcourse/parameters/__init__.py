"""What every technique does with a model's parameters and their gradients.

In the order in which to read them:

    replicas.py        the same model on all ranks: compared, broadcast, gradients averaged one by one
    buckets.py         many gradients in one message
    backward.py        where a backward pass begins, and when all of it is over
    reducer.py         the Reducer: gradients into buckets, buckets on their way while backward runs
    unused.py          parameters that the loss does not depend on
    wrapper.py         what all wrappers round a module have in common
    grad_norm.py       the norm of gradients that are spread over any axes, and clipping by it
    slices.py          which parameters are slices: techniques that do not compose refuse each other
    agreement.py       ranks that must all take the same way
"""
