"""The cluster.toml that `dtcourse cluster example` prints: every setting, with what it means."""

EXAMPLE = """\
# What dtcourse needs to know of this cluster. Keep it beside the notebooks, in ~/.config/dtcourse/, or name it in
# the environment variable DTCOURSE_CLUSTER. `dtcourse doctor --cluster slurm` tries it on every node.
scheduler = "slurm"             # or "ray", which refuses what is Slurm's alone (docs/ray.md)
folder = "~/.dtcourse/jobs"     # must be on a file system that all nodes share
# partition = "gpu"
# account = "ml-course"
minutes = 30                    # a job's time limit
# wait_minutes = 60             # give up when the job has waited so long in the queue
# keep = true                   # hold the nodes between a notebook's launches: the next one starts at once
# idle_minutes = 10             # then nodes without a launch are given back
# keep_minutes = 60             # for which they are held at most
# signal = "USR2@90"            # sent to the ranks so many seconds before the limit
# ranks_per_node = 4
cpus_per_rank = 1
# memory_per_node = 32          # GB
gpus_per_node = 0
# interface = "ib0"             # without it, the interface that leads to the other nodes is found
# container = "pytorch/pytorch" # needs Slurm's pyxis plugin; python = "python" then, and the course in the image
# modules = ["cuda/12.8"]
# setup = ["source /opt/course/bin/activate"]
# python = "/opt/course/bin/python"

# [options]                     # any other option of sbatch, by its long name
# qos = "teaching"

# [kubernetes]                  # what `dtcourse kubernetes` needs besides; it takes minutes, wait_minutes,
#                               # ranks_per_node, cpus_per_rank, memory_per_node, gpus_per_node and interface from above
# namespace = "ml-course"
# image = "registry.example/dtcourse:1"
# user = 1000                   # for an image that would run as root
# pull_secrets = ["registry"]   # Secrets with the registry's password
# gpu = "nvidia.com/gpu"        # the resource that stands for a GPU
# shared_memory = 2             # GB of /dev/shm
# claims = { "/data" = "course-data:ro", "/checkpoints" = "checkpoints" } # PersistentVolumeClaims
# node_selector = { pool = "gpu" }
# tolerations = ["nvidia.com/gpu:NoSchedule"]
# priority = "teaching"         # a PriorityClass
# queue = "ml-course"           # Kueue's LocalQueue, where the cluster has Kueue
# ttl_minutes = 1440            # an ended Job and its logs stay so long
# runtime = "torch-distributed" # Kubeflow's, for --trainjob
"""
