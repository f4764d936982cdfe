"""JAX's shard_map: the function is what one device does, and the mean over devices is written out."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import job


def loss_of(parameters, images, labels):
    """The mean cross-entropy of the whole batch, from a device's part of it."""
    hidden = jax.nn.relu(images @ parameters["0.weight"].T + parameters["0.bias"])
    logits = hidden @ parameters["2.weight"].T + parameters["2.bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return jax.lax.pmean(-chosen.mean(), "data")


def main(rank, world_size, address):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=world_size, process_id=rank)
    mesh = jax.make_mesh((world_size,), ("data",))
    sharding = NamedSharding(mesh, P("data"))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()))
    def step(parameters, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
        return jax.tree.map(lambda p, g: p - job.LR * g, parameters, gradients), loss

    log = job.Log()
    parameters = job.weights()
    for batch in job.batches(rank, world_size):
        images, labels = (jax.make_array_from_process_local_data(sharding, x) for x in batch)
        parameters, loss = step(parameters, images, labels)
        log.step(loss)
    if rank == 0:
        log.report()


if __name__ == "__main__":
    job.start(main)
