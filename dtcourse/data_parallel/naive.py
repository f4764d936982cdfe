"""Data parallelism in two functions: start from the same weights, average the gradients after each backward.

    broadcast_model(model)            # once
    loss(model(x), y).backward()      # on this rank's part of the batch
    average_gradients(model)
    optimizer.step()

The mean over ranks of the mean over each rank's equal share is the mean over the whole batch, so with plain SGD every
step is the step that one process would take on all the data. Nothing is hidden and nothing is fast: the network idles
during backward, the processor during the all-reduces, and every small parameter pays a message's latency.
per_parameter.py mends the first, buckets (ddp.py) the second.

Bytes a rank sends in a step: 2 (p - 1) / p of the gradients' bytes, in at least 2 (p - 1) messages a parameter (ring).
Other techniques need both functions too, so they stand below all of them, in parameters/replicas.py.
"""

from dtcourse.parameters.replicas import average_gradients, broadcast_model

__all__ = ["average_gradients", "broadcast_model"]
