"""torchft: replicas of one process each, which agree at each step who takes part; a lighthouse knows who lives."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import job

REPLICAS = 2


def main(rank, world_size, _address):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)

    def state_dict():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=world_size,
        replica_id=f"replica_{rank}",
        rank=0,  # in its replica, which has one process and a store of its own
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        init_sync=False,  # all begin with the job's weights
    )
    replicas = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)

    log = job.Log()
    for images, labels in job.batches(rank, world_size):
        managed.zero_grad()  # asks for the quorum
        loss = nn.functional.cross_entropy(
            replicas(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        loss.backward()
        managed.step()  # only where no replica has failed meanwhile
        log.step(loss.item())

    manager.start_quorum()
    losses = torch.tensor(log.losses, dtype=torch.float64)
    manager.allreduce(losses).wait()  # the mean
    if rank == 0:
        log.report(losses)
    manager.should_commit()
    manager.shutdown()


if __name__ == "__main__":
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=60000)
    port = lighthouse.address().rsplit(":", 1)[1]
    os.environ["TORCHFT_LIGHTHOUSE"] = f"http://localhost:{port}"
    job.start(main, REPLICAS)
    lighthouse.shutdown()
