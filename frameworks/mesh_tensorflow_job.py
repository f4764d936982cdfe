"""Mesh TensorFlow: tensors have named dimensions, and a layout says which of them a mesh of devices cuts.

It builds a TensorFlow 1 graph in one process for two devices. Its successors are jit and shard_map in JAX.
"""

import types

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops

# Mesh TensorFlow is of 2022: what it wants when it is imported, and TensorFlow 2.21 no longer has there.
tf.estimator = types.SimpleNamespace(
    CheckpointSaverListener=tf.train.CheckpointSaverListener, SessionRunHook=tf.train.SessionRunHook
)
ops.register_tensor_conversion_function = tf.register_tensor_conversion_function
import mesh_tensorflow as mtf  # noqa: E402

import job  # noqa: E402

DEVICES = ["cpu:0", "cpu:1"]


def graph_of_job(mesh, images, labels):
    """The loss, and the variables' updates."""
    start = {name: tf.constant_initializer(array.T) for name, array in job.weights().items()}
    batch = mtf.Dimension("batch", job.BATCH)
    n_in, n_hidden, n_out = map(mtf.Dimension, ("pixels", "hidden", "digits"), job.SIZES)
    x = mtf.import_tf_tensor(mesh, images, mtf.Shape([batch, n_in]))
    target = mtf.import_tf_tensor(mesh, labels, mtf.Shape([batch]))
    w1 = mtf.get_variable(mesh, "w1", mtf.Shape([n_in, n_hidden]), initializer=start["0.weight"])
    b1 = mtf.get_variable(mesh, "b1", mtf.Shape([n_hidden]), initializer=start["0.bias"])
    w2 = mtf.get_variable(mesh, "w2", mtf.Shape([n_hidden, n_out]), initializer=start["2.weight"])
    b2 = mtf.get_variable(mesh, "b2", mtf.Shape([n_out]), initializer=start["2.bias"])
    hidden = mtf.relu(mtf.einsum([x, w1], mtf.Shape([batch, n_hidden])) + b1)
    logits = mtf.einsum([hidden, w2], mtf.Shape([batch, n_out])) + b2
    one_hot = mtf.one_hot(target, n_out)
    each = mtf.layers.softmax_cross_entropy_with_logits(logits, one_hot, n_out)
    loss = mtf.reduce_mean(each)
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
    new = [v.outputs[0] - job.LR * g for v, g in zip(variables, gradients, strict=True)]
    # No variable is written before all gradients have been made from the old ones.
    after_all = [mtf.depend(each, new) for each in new]
    return loss, [mtf.assign(v, each) for v, each in zip(variables, after_all, strict=True)]


def main():
    tf.disable_v2_behavior()
    images = tf.placeholder(tf.float32, (job.BATCH, job.SIZES[0]))
    labels = tf.placeholder(tf.int32, (job.BATCH,))
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    loss, updates = graph_of_job(mesh, images, labels)
    shape, layout = mtf.convert_to_shape("all:2"), mtf.convert_to_layout_rules("batch:all")
    devices = mtf.placement_mesh_impl.PlacementMeshImpl(shape, layout, DEVICES)
    lowering = mtf.Lowering(graph, {mesh: devices})
    tf_loss = lowering.export_to_tf_tensor(loss)
    step = tf.group([lowering.lowered_operation(update) for update in updates])
    restore = mtf.MtfRestoreHook(lowering)
    restore.begin()
    config = tf.ConfigProto(device_count={"CPU": len(DEVICES)})
    log = job.Log()
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        restore.after_create_session(session, None)
        for batch in job.batches():
            value, _ = session.run([tf_loss, step], dict(zip((images, labels), batch, strict=True)))
            log.step(value)
    log.report()


if __name__ == "__main__":
    main()
