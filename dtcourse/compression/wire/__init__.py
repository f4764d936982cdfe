"""What every method's bytes go through: collectives, the mean of all ranks' vectors, a thread beside backward,
the hook.

In the order in which to read them:

    exchange.py    what every scheme of averaging sends
    averaging.py   the mean of all ranks' vectors, compressed, by four schemes; error feedback
    background.py  a bucket's messages in a thread of their own, while backward goes on
    of_model.py    what a hook keeps between steps, by parameter
    comm_hook.py   all of it for DistributedDataParallel, ours and PyTorch's
"""
