"""Flower's simulation: two clients make one step each on their part of a batch; the server averages their models."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

import job

CLIENTS = 2
client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    """One step of SGD from the server's model: the mean of two such models is a step with the mean gradient."""
    rank, step = context.node_config["partition-id"], message.content["config"]["server-round"] - 1
    images, labels = (torch.from_numpy(each) for each in list(job.batches(rank, CLIENTS))[step])
    model = job.torch_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(labels)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


class LoggedFedAvg(FedAvg):
    """FedAvg that keeps the clients' mean loss of each round."""

    log = job.Log()

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.log.step(metrics["loss"])
        return arrays, metrics


@server.main()
def serve(grid, _context):
    strategy = LoggedFedAvg(
        fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS
    )
    start = ArrayRecord(job.torch_model().state_dict())
    strategy.start(grid, start, num_rounds=job.STEPS, train_config=ConfigRecord({}))
    strategy.log.report()


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=CLIENTS)
