"""TensorFlow's ParameterServerStrategy: a coordinator gives steps to two workers, and the variables are on a server.

The strategy is asynchronous: a worker applies its gradient when it has it. To be equal to one process, the workers here
add their gradients to sums on the server, and the coordinator applies these when both have come.
"""

import multiprocessing
import socket

import tensorflow as tf

import job

WORKERS = 2


def serve(cluster, kind, index):
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=kind, task_index=index, protocol="grpc"
    )
    server.join()


def start_servers():
    """The cluster's addresses; its parameter server and workers end with this process."""
    free = [socket.create_server(("localhost", 0)) for _ in range(1 + WORKERS)]
    ps, *workers = [f"localhost:{each.getsockname()[1]}" for each in free]
    for each in free:
        each.close()
    cluster = {"ps": [ps], "worker": workers}
    fresh = multiprocessing.get_context("spawn")
    for kind, addresses in cluster.items():
        for index in range(len(addresses)):
            fresh.Process(target=serve, args=(cluster, kind, index), daemon=True).start()
    return cluster


def main():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(start_servers()), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(array) for array in job.weights().values()]
        sums = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function
    def add_gradients(images, labels):
        with tf.GradientTape() as tape:
            w1, b1, w2, b2 = weights
            hidden = tf.nn.relu(tf.matmul(images, w1, transpose_b=True) + b1)
            logits = tf.matmul(hidden, w2, transpose_b=True) + b2
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for total, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient / WORKERS)
        return loss

    @tf.function
    def apply():
        for weight, total in zip(weights, sums, strict=True):
            weight.assign_sub(job.LR * total)
            total.assign(tf.zeros_like(total))

    log = job.Log()
    parts = [job.batches(worker, WORKERS) for worker in range(WORKERS)]
    for batch in zip(*parts, strict=True):
        losses = [coordinator.schedule(add_gradients, args=each) for each in batch]
        coordinator.join()
        coordinator.schedule(apply)
        coordinator.join()
        log.step(sum(loss.fetch() for loss in losses) / WORKERS)
    log.report()


if __name__ == "__main__":
    main()
