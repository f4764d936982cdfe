"""Local updates: each rank takes steps of its own, and they meet now and then.

In the order in which to read them:

    local_optimizer.py    what all methods of local updates share: an optimizer round an optimizer
    flat.py               many tensors in few messages
    local_sgd.py          H steps alone, then the mean; averaged gradients first (post-local SGD)
    adaptive_period.py    AdaComm: H from the loss
    elastic_averaging.py  EASGD: ranks on a spring to a center that follows them
    mixing.py             graphs, and how fast they mix
    gossip.py             the mean with the neighbours on a graph, while gradients are computed
    diloco.py             hundreds of steps of AdamW, then one outer step with momentum
"""
