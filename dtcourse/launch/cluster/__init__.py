"""The same cell on a cluster: `launch(step, 8, nodes=2, cluster="slurm")`.

What travels is what travels on one machine: the function as a parcel, results, messages and printed lines back. Between
the notebook and the nodes lies a folder that both can read, since that is what every cluster has; between the nodes, a
TCP store on the cluster's own network.

settings.py   cluster.toml: what an instructor writes once
folder.py     one job's private folder, and how a file in it is read while somebody writes it
call.py       what the agents of a job are asked to do
agent.py      what runs on a node: one process that imports torch once and splits off that node's ranks
slurm.py      submitting, asking and cancelling, on top of submitit
job.py        the notebook's side: follow a job until its ranks have answered
remote.py     launch(..., cluster=...)
kubernetes.py manifests: an Indexed Job with its Service, or a TrainJob; names.py says what may be called how
throwaway.py  a real Slurm of two nodes on this machine, for tests, lessons and trying out
"""
