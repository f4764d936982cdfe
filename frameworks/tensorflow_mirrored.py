"""TensorFlow's MirroredStrategy: one process, a replica of the variables on each of two devices, gradients summed."""

import tensorflow as tf

import job

REPLICAS = 2


def model_of_job():
    """The model in Keras, whose kernels are (in, out)."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((job.SIZES[0],)),
            tf.keras.layers.Dense(job.SIZES[1], activation="relu"),
            tf.keras.layers.Dense(job.SIZES[2]),
        ]
    )
    model.set_weights([array.T for array in job.weights().values()])
    return model


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
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
    log.report()


if __name__ == "__main__":
    main()
