"""What carries the algorithms' messages from rank to rank: an algorithm sees `p2p` alone, and p2p stands on this.

A message on its way, in the order in which to read:

channel.py            one rank's end of a group: a message's tag says what it is, so no other can be taken for it
transport.py          what can be a message; gloo and NCCL, to which it is handed, alone or in a batch
arrivals.py           it has left or come: wait(), and which of several messages is over first
message.py            one that somebody hears of
observers.py          who does: the emulated network, the counters, the timeline, and whoever asks to

and what is round many of them:

work.py               asynchronous collectives: a worker thread, a Work to wait for
emulated_future.py    what waits for a collective on an emulated clock goes on at the collective's time
guard.py              a rank that fails, or calls something else, is found; the others raise instead of waiting
guarding.py           the one thread that watches over all groups
"""
