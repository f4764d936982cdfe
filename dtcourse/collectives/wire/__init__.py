"""What carries the algorithms' messages from rank to rank: an algorithm sees `p2p` alone, and p2p stands on this.

sendable.py           what can be a message
channel.py            one rank's end of a group: a message's tag says what it is, so no other can be taken for it
work.py               asynchronous collectives: a worker thread, a Work to wait for
guarding.py           the one thread that watches over all groups
guard.py              a rank that fails, or calls something else, is found; the others raise instead of waiting
batch.py              messages that start together, which NCCL needs where a rank sends and receives at once
arrivals.py           which of several messages is over first
emulated_future.py    what waits for a collective on an emulated clock goes on at the collective's time
device_transport.py   tensors on GPUs: over NCCL where each rank has one of its own, else through host memory
"""
