"""Less waiting: ranks that take steps of their own and meet now and then, or that a server keeps together.

In the order in which to read them. Parameter servers:

    update_rules.py              what a server does with a gradient, and whom it lets wait
    roles.py                     who is a server and who a worker, and what travels between them
    links.py                     how they reach each other
    worker.py                    pushes gradients, pulls parameters
    serving.py                   receives gradients, lets the rule decide, answers
    parameter_server.py          one rank holds the model, and serves it
    sharded_parameter_server.py  many servers, each with a part of it
    colocated.py                 the servers on the workers' own ranks
    backup_workers.py            a rule that does not wait for the slowest
    stragglers.py                who is slow, from the times of each rank's own work
    rpc_parameter_server.py      the same by PyTorch's remote calls; imported by itself

Local updates:

    local_optimizer.py    what all methods of local updates share: an optimizer round an optimizer
    flat.py               many tensors in few messages
    local_sgd.py          H steps alone, then the mean; averaged gradients first (post-local SGD)
    adaptive_period.py    AdaComm: H from the loss
    elastic_averaging.py  EASGD: ranks on a spring to a center that follows them
    mixing.py             graphs, and how fast they mix
    gossip.py             the mean with the neighbours on a graph, while gradients are computed
    diloco.py             hundreds of steps of AdamW, then one outer step with momentum
"""

from dtcourse.asynchronous.adaptive_period import AdaComm
from dtcourse.asynchronous.backup_workers import BackupWorkers
from dtcourse.asynchronous.colocated import ColocatedWorker
from dtcourse.asynchronous.diloco import DiLoCo
from dtcourse.asynchronous.elastic_averaging import ElasticAveraging
from dtcourse.asynchronous.gossip import GossipSGD, consensus_distance
from dtcourse.asynchronous.local_sgd import LocalSGD
from dtcourse.asynchronous.parameter_server import ParameterServer
from dtcourse.asynchronous.serving import Served, ServerReport
from dtcourse.asynchronous.sharded_parameter_server import (
    ShardServer,
    StepBytes,
    bytes_per_step,
)
from dtcourse.asynchronous.stragglers import (
    StragglerDetector,
    Stragglers,
    find_stragglers,
    stragglers_in,
)
from dtcourse.asynchronous.update_rules import (
    Asynchronous,
    BoundedStaleness,
    Synchronous,
    inverse_staleness,
)
from dtcourse.asynchronous.worker import ServerLost, Worker

__all__ = [
    "AdaComm",
    "Asynchronous",
    "BackupWorkers",
    "BoundedStaleness",
    "ColocatedWorker",
    "DiLoCo",
    "ElasticAveraging",
    "GossipSGD",
    "LocalSGD",
    "ParameterServer",
    "Served",
    "ServerLost",
    "ServerReport",
    "ShardServer",
    "StepBytes",
    "StragglerDetector",
    "Stragglers",
    "Synchronous",
    "Worker",
    "bytes_per_step",
    "consensus_distance",
    "find_stragglers",
    "inverse_staleness",
    "stragglers_in",
]
