"""Predictions before anything runs: what machines are, what links carry, what a step will take.

hardware.py          published figures of accelerators and links, each with its source
collective_cost.py   how long each collective algorithm takes: latency, gap, bytes, reduction
topology.py          networks as graphs: hops, bisection, oversubscription
nodes.py             nodes as graphs of PCIe, NVLink and NVSwitch: how long traffic takes on their links
ecmp.py              the same where every switch decides for itself which neighbours get what
shared_links.py      an algorithm's rounds on such graphs: what it costs that messages share a link
cluster.py           nodes of GPUs and network cards, and what NCCL uses of their links
nccl.py              NCCL's own model: latency and share of the bandwidth, by algorithm and protocol
cluster_collectives.py  from both, how long a collective takes on a cluster: where lessons take such numbers from
rank_order.py        which axis of a mesh goes inside the node
mesh_layouts.py      which dim of each tensor lies along which axis of a mesh, in three notations
mesh_traffic.py      the collectives that follow from that
states.py            bytes of parameters, gradients and optimizer states, for each precision and ZeRO stage
activations.py       bytes that a Transformer's forward pass keeps, tensor by tensor
memory.py            the plan of a step's memory from both: does it fit?
tracing.py           the same for any module, by running its step on tensors that have no memory
virtual_cluster.py   one rank of any number, so traced: what it calls, computes and keeps
"""
