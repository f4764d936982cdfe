"""What every technique does with a model's parameters and their gradients.

In the order in which to read them:

    replicas.py        the same model on all ranks: broadcast, gradients averaged one by one
    buckets.py         many gradients in one message
    backward.py        where a backward pass begins, and when all of it is over
    reducer.py         the Reducer: gradients into buckets, buckets on their way while backward runs
    comm_hooks.py      what a communication hook is, and what it returns
    unused.py          parameters that the loss does not depend on
    wrapper.py         what all wrappers round a module have in common
    cuts.py            how a technique gives out a parameter over the ranks of an axis
    deep_copies.py     a copy of a model that is cut, over the same groups
    placement.py       where each parameter's pieces are, whoever has cut it
    same_model.py      whether all ranks have the same model, cut alike
    checksum.py        a number for a tensor's bits, by which ranks compare what they hold
    naming.py          a model's parameters by the names that the whole model has for them
    owners.py          a model of which each rank has some parameters: a pipeline
    on_meta.py         a model without memory, which gets it when it has been cut
    whole.py           the whole state and gradients, from pieces and into them
    grad_norm.py       the norm of gradients that are spread over any axes
    averaging.py       gradients averaged over the axes on which a batch is divided
    partial_gradients.py  of which each rank of an axis brings a part: summed in every backward, or once
    clipping.py        that of a model's, and clipping by it
    overflow.py        a gradient that is not finite on one rank is so for all
    seeds.py           a seed for each place of a run
    slices.py          techniques that do not compose refuse each other
    agreement.py       ranks that must all take the same way
"""
