"""Tools that watch a rank of any program, which knows nothing of them, and then say what is wrong or nothing.

Each is begun before the program and ended after it; what it has seen of each rank is compared when all are over. The
program is not changed: torch's own hooks are asked (of every optimizer, of every module, of every operator).

watch.py     what they have in common
replicas.py  parameters that were the same on all ranks and are not any more, or get one gradient and are not the same
draws.py     random numbers that ranks draw alike for different data
reads.py     the samples that loaders have read
numbers.py   the operation that made the first number that is not finite
growth.py    memory that more of stays alive after each step
messages.py  messages that carry more than what was made of them needs
groups.py    groups that were taken down and are asked for afterwards
files.py     files that several ranks write, or that are written within an optimizer's step
optimizers.py  optimizers that hold parameters which nobody uses, or whose counters stand
loads.py     checkpoints of which tensors are left out for their names
ties.py      choices of the largest among equals
"""
