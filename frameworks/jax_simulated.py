"""JAX on four simulated devices of one process, in a mesh: the batch is cut over one axis, the layers over the other.

A sharding is part of an array's type. The compiler finds the collectives, and asks where types leave a choice.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import job

jax.config.update("jax_num_cpu_devices", 4)

LAYOUT = {  # the hidden layer's 128 numbers are cut: rows of the first weight, columns of the second
    "0.weight": P("model", None),
    "0.bias": P("model"),
    "2.weight": P(None, "model"),
    "2.bias": P(),
}


def loss_of(parameters, images, labels):
    """The mean cross-entropy."""
    hidden = jax.nn.relu(images @ parameters["0.weight"].T + parameters["0.bias"])
    # What this sums over is cut. The sums could be cut too; here all devices of "model" get all of them.
    logits = jnp.matmul(hidden, parameters["2.weight"].T, out_sharding=P("data"))
    logits += parameters["2.bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@jax.jit
def step(parameters, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
    return jax.tree.map(lambda p, g: p - job.LR * g, parameters, gradients), loss


def main():
    jax.set_mesh(jax.make_mesh((2, 2), ("data", "model")))

    log = job.Log()
    parameters = jax.device_put(job.weights(), LAYOUT)
    for batch in job.batches():
        images, labels = jax.device_put(batch, P("data"))
        parameters, loss = step(parameters, images, labels)
        log.step(loss)
    log.report()


if __name__ == "__main__":
    main()
