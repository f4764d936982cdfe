"""Checkpoints in parts, whatever cut the model: what each technique that saves and loads on any number of ranks stands
on.

In the order in which to read them:

    local_chunks.py what a rank keeps of a parameter, as chunks of the whole: so any number of ranks can read it
    checksums.py    a damaged byte is found before anything is loaded
    folder.py       written by all ranks together; read all or nothing
    state.py        the optimizer's part: by parameters' names, in PyTorch's own shape
"""
