"""Kubernetes: manifests that run `-m dtcourse.launch file.py:function` on several Pods, from the same cluster.toml.

A node of ours is a Pod, in which torchrun starts that node's ranks. Two ways to get equal Pods that know their number:

    job          the cluster's own: an Indexed Job, whose Pods are numbered, and a headless Service, which gives each
                 a name. We tell torchrun its number, and Pod 0's name.
    train_job    Kubeflow's TrainJob, where its Trainer is installed. It makes the same of a few lines, and tells
                 torchrun itself, in variables that begin with PET_.

Neither places its Pods all at once or not at all (gang scheduling): where there is room for one Pod of two, that one
waits for the other, and keeps its GPUs meanwhile. `queue` in cluster.toml hands both kinds to Kueue, which starts them
when there is quota for all; a TrainJob gets it from its runtime too (podGroupPolicy).

A group of ranks cannot go on without one of them, and a Pod that starts again finds nobody to join. So a Job ends
when its first Pod fails, for whatever reason. What a run leaves for the next one lies in a claim (pods.py).

Each run has a name of its own, of function, user and chance: in a namespace that a class shares, and at the second
run, `kubectl apply` would take an equal name for a change of what is there. The Service is the same for all runs.

training.py    what was asked for, checked and named
manifests.py   a Service, an Indexed Job, a TrainJob
pods.py        what both kinds of Pods need: resources, folders, machines, a user
yaml_text.py   manifests as text

[kubernetes] in cluster.toml is ../kubernetes_table.py; what may be called how says ../names.py.
"""
