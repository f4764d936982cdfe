"""TensorFlow's MultiWorkerMirroredStrategy: TF_CONFIG names the workers, and each runs the same program."""

import json
import os

import job


def main(rank, world_size, address):
    host, port = address.split(":")
    workers = [f"{host}:{int(port) + i}" for i in range(world_size)]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf  # reads TF_CONFIG
    from tensorflow_mirrored import model_of_job

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        model = model_of_job()
        optimizer = tf.keras.optimizers.SGD(job.LR)

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.nn.compute_average_loss(each, global_batch_size=job.BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(images, labels):
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(job.data()).batch(job.BATCH)
    log = job.Log()
    for images, labels in strategy.experimental_distribute_dataset(dataset):
        log.step(step(images, labels))
    if rank == 0:
        log.report()


if __name__ == "__main__":
    job.start(main)
