"""Less waiting: ranks that take steps of their own and meet now and then, or that a server keeps together.

In the order in which to read them; each room says the same of its files:

    stragglers.py       who is slow, from the times of each rank's own work
    parameter_servers/  workers push gradients and pull parameters; a rule says who waits for whom
    local_updates/      steps alone, then a meeting: local SGD, AdaComm, EASGD, gossip, DiLoCo

parameter_servers/rpc_parameter_server.py, the same by PyTorch's remote calls, is imported by itself.
"""

from dtcourse.asynchronous.local_updates import mixing
from dtcourse.asynchronous.local_updates.adaptive_period import AdaComm
from dtcourse.asynchronous.local_updates.diloco import DiLoCo
from dtcourse.asynchronous.local_updates.elastic_averaging import ElasticAveraging
from dtcourse.asynchronous.local_updates.gossip import GossipSGD, consensus_distance
from dtcourse.asynchronous.local_updates.local_sgd import LocalSGD
from dtcourse.asynchronous.parameter_servers.backup_workers import BackupWorkers
from dtcourse.asynchronous.parameter_servers.colocated import ColocatedWorker
from dtcourse.asynchronous.parameter_servers.parameter_server import ParameterServer
from dtcourse.asynchronous.parameter_servers.serving import Served, ServerReport
from dtcourse.asynchronous.parameter_servers.sharded_parameter_server import (
    ShardServer,
    StepBytes,
    bytes_per_step,
)
from dtcourse.asynchronous.parameter_servers.update_rules import (
    Asynchronous,
    BoundedStaleness,
    Synchronous,
    inverse_staleness,
)
from dtcourse.asynchronous.parameter_servers.worker import ServerLost, Worker
from dtcourse.asynchronous.stragglers import (
    StragglerDetector,
    Stragglers,
    find_stragglers,
    stragglers_in,
)

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
    "mixing",
    "stragglers_in",
]
