"""torchft where a replica is killed: the other one repeats the step, and the new one takes over its weights."""

import multiprocessing
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import job

REPLICAS, DIES_AT = 2, 8


def main(rank, life):
    torch.manual_seed(life)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = job.torch_model()
    if life:  # whatever its weights are: it gets the other's
        nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)

    def state_dict():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=REPLICAS,
        use_async_quorum=False,  # a new replica is healed before it computes, and takes part at once
        init_sync=False,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=120),  # until the new replica is there
        replica_id=f"replica_{rank}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
    )
    managed = Optimizer(manager, optimizer)
    batches = list(job.batches(rank, REPLICAS))

    log = job.Log()
    while manager.current_step() < job.STEPS:
        managed.zero_grad()
        step = manager.current_step()  # of a new replica: the others', once it is healed
        images, labels = (torch.from_numpy(each) for each in batches[step])
        loss = nn.functional.cross_entropy(model(images), labels)
        if (rank, life, step) == (1, 0, DIES_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        # By hand: DistributedDataParallel of torchft 0.2 raises in the survivor's backward, and never gets as far.
        mean = loss.detach().double()
        means = [manager.allreduce(each) for each in (mean, *(p.grad for p in model.parameters()))]
        for each in means:
            each.wait()
        managed.step()
        if manager.current_step() > step:  # else a replica has failed, and the step is repeated
            log.step(mean.item())
    if rank == 0:
        log.report()
    manager.shutdown()


if __name__ == "__main__":
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=60000)
    port = lighthouse.address().rsplit(":", 1)[1]
    os.environ["TORCHFT_LIGHTHOUSE"] = f"http://localhost:{port}"
    fresh = multiprocessing.get_context("spawn")
    survivor, killed = (fresh.Process(target=main, args=(rank, 0)) for rank in range(REPLICAS))
    survivor.start()
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    healed = fresh.Process(target=main, args=(1, 1))
    healed.start()
    survivor.join()
    healed.join()
    lighthouse.shutdown()
    assert survivor.exitcode == healed.exitcode == 0
