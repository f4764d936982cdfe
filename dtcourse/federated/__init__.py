"""Learning from data that stay where they are: clients train, and a server sees changes of the model alone.

In the order in which to read them:

    skew.py               clients with few labels each, and with few samples: Dirichlet's shares
    clients.py            many clients on few ranks; who takes part in a round
    vectors.py            a model as one vector
    client_work.py        the steps that a client takes on its own samples
    rounds.py             the report of a round
    settings.py           what ranks that simulate one federation have to be told alike
    fedavg.py             FedAvg and FedProx: the mean of the clients' changes; compressed, if wanted
    scaffold.py           SCAFFOLD: control variates against drift
    server_optimizers.py  FedOpt: the mean change as the gradient of FedAdam, FedYogi, FedAdagrad
    accountant.py         what noisy sums tell: Renyi divergences, added up; a budget
    clipping.py           a gradient for each sample, none longer than max_norm
    private_work.py       DP-SGD at each client: private for each sample
    client_level.py       DP-FedAvg: private for each client
    secure/               secure aggregation: the sum of the clients' vectors, and nothing else
    secure_fedavg.py      FedAvg through it
"""

from dtcourse.federated.accountant import (
    Accountant,
    Budget,
    BudgetSpent,
    noise_multiplier_for,
    renyi_divergence,
)
from dtcourse.federated.client_level import ClientLevelFedAvg
from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients, poisson_sample
from dtcourse.federated.clipping import clipped, per_sample_gradients
from dtcourse.federated.fedavg import FedAvg
from dtcourse.federated.private_work import SampleLevelWork
from dtcourse.federated.rounds import Round
from dtcourse.federated.scaffold import Scaffold
from dtcourse.federated.secure import FixedPoint, SecureClient, SecureServer, Stopped, secure_sum
from dtcourse.federated.secure_fedavg import SecureFedAvg
from dtcourse.federated.server_optimizers import (
    FedAdagrad,
    FedAdam,
    FedYogi,
    ServerOptimizer,
    ServerSGD,
)
from dtcourse.federated.skew import even_sizes, label_skew, quantity_skew

__all__ = [
    "Accountant",
    "Budget",
    "BudgetSpent",
    "ClientLevelFedAvg",
    "ClientWork",
    "Clients",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "FixedPoint",
    "Round",
    "SampleLevelWork",
    "Scaffold",
    "SecureClient",
    "SecureFedAvg",
    "SecureServer",
    "ServerOptimizer",
    "ServerSGD",
    "Stopped",
    "clipped",
    "even_sizes",
    "label_skew",
    "noise_multiplier_for",
    "per_sample_gradients",
    "poisson_sample",
    "quantity_skew",
    "renyi_divergence",
    "secure_sum",
]
