"""The same cell on a cluster: `launch(step, 8, nodes=2, cluster="slurm")`.

What travels is what travels on one machine: the function and its arguments there; results, messages and printed lines
back. Between the notebook and the nodes lies a folder that both can read, since that is what every cluster has; between
the nodes, a TCP store on the cluster's own network.

In this order:

settings.py    cluster.toml: what an instructor writes once
remote.py      launch(..., cluster=...), from the call to the Run
call.py        what the agents of a job are asked to do
folder.py      one job's private folder, and how a file in it is read while somebody writes it
agent.py       what runs on a node: one process that imports torch once and splits off that node's ranks
rendezvous.py  where the agents and the ranks of several nodes meet
entry.py       what the batch script starts on each node: the agent, from a folder that is ours alone
slurm.py       submitting, on top of submitit
controller.py  asking Slurm and cancelling
job.py         the notebook's side: follow a job until its ranks have answered; record.py is what is known of one
ending.py      how a job's end is told
jobs.py        jobs of another notebook, or of yesterday
batch.py       jobs without a notebook: sweeps, and jobs that Slurm may start again
probe.py       what `dtcourse doctor --cluster` asks every node
kubernetes/    manifests for Kubernetes: an Indexed Job with its Service, or a TrainJob
throwaway.py   a real Slurm of several nodes on this machine, for tests, lessons and trying out
"""
