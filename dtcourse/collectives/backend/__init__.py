"""The algorithms behind torch.distributed's own calls: launch(..., backend="ring") runs PyTorch's DDP and FSDP on them.

register.py            makes the algorithms known to torch.distributed by name, and forms a rank's group
table.py               which algorithm each backend runs for each collective
process_group.py       the group that torch then holds, and how it runs a collective
collective_calls.py    the methods that torch calls on it, each as one of our collectives
arguments.py           what torch passes to those methods, made plain
monitored_barrier.py   the barrier that says who did not come
instrumented.py        torch's own backends, watched: counted, recorded and slowed; the data is left to them
virtual.py             one rank of a group of any size, without the others: counted, and nothing is sent
torch_calls.py         what the last two share: torch's methods by name, and the bytes of a call
"""
