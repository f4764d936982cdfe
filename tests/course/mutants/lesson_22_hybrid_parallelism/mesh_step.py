"""Answers to mesh_step: see test_exercises.py."""

from tests.course.edits import edited
from tests.course.hidden import EVERYONES

_RETURN = 'return {name: add(grad, "dp") for name, grad in grads.items()}'
_FORWARD = 'y = x + add(hidden @ w2.T, "tp") + b2'
_BACKWARD = 'dscaled = add(da @ w1, "tp")'
_SCALE = '"scale": add((dscaled * x).sum(0), "pp"),'
_REDUCE = "        dist.all_reduce(tensor, group=groups[axis][0])\n        return tensor\n"
_EXCHANGE = "        dist.send(y, stages[stage + 1])\n        dy = torch.empty_like(y)\n        dist.recv(dy, stages[stage + 1])\n"
_RANKS = "    rank = dist.get_rank()\n"

# Neither groups nor collectives: the first rank of each axis adds up, and tells the others.
_BY_MESSAGES = """
import math

import torch
import torch.distributed as dist


def mesh_step(axes, sizes, part, samples):
    rank, here, peers, stride = dist.get_rank(), {}, {}, 1
    for axis in reversed(axes):
        here[axis] = rank // stride % sizes[axis]
        peers[axis] = [rank + (i - here[axis]) * stride for i in range(sizes[axis])]
        stride *= sizes[axis]

    def add(tensor, axis):
        tensor, (first, *others) = tensor.contiguous(), peers[axis]
        if rank != first:
            dist.send(tensor, first)
            dist.recv(tensor, first)
            return tensor
        for other in others:
            theirs = torch.empty_like(tensor)
            dist.recv(theirs, other)
            tensor = tensor + theirs
        for other in others:
            dist.send(tensor, other)
        return tensor

    before = peers["pp"][here["pp"] - 1] if here["pp"] > 0 else None
    after = peers["pp"][here["pp"] + 1] if here["pp"] + 1 < sizes["pp"] else None
    mine = samples // sizes["dp"] + (here["dp"] < samples % sizes["dp"])
    x = part["x"]
    if before is not None:
        x = torch.zeros(mine, part["scale"].numel(), dtype=torch.double)
        dist.recv(x, before)
    a = (x * part["scale"]) @ part["w1"].T + part["b1"]
    y = add(a.clamp(min=0) @ part["w2"].T, "tp").add_(x).add_(part["b2"])
    if after is not None:
        dist.send(y, after)
        dy = torch.zeros_like(y)
        dist.recv(dy, after)
    else:
        dy = (y - part["target"]) * (2 / samples)
    da = torch.where(a > 0, dy @ part["w2"], 0.0)
    # What the input's gradient is made of, and what `scale`'s is made of, are one sum.
    back = add(da @ part["w1"], "tp")
    if before is not None:
        dist.send(dy + back * part["scale"], before)
    grads = {"w1": da.T @ (x * part["scale"]), "b1": da.sum(0), "w2": dy.T @ a.clamp(min=0), "b2": dy.sum(0)}
    grads["scale"] = add((back * x).sum(0), "pp")
    flat = add(torch.cat([g.flatten() for g in grads.values()]), "dp")
    shapes = [g.shape for g in grads.values()]
    pieces = flat.split([math.prod(shape) for shape in shapes])
    return {name: piece.view(shape) for name, piece, shape in zip(grads, pieces, shapes)}
"""

_AUTOGRAD = """
import itertools

import torch
import torch.distributed as dist


def mesh_step(axes, sizes, part, samples):
    places = list(itertools.product(*(range(sizes[axis]) for axis in axes)))
    place, groups, members = places[dist.get_rank()], {}, {}
    for i, axis in enumerate(axes):
        rows = {}
        for r, one in enumerate(places):
            rows.setdefault(one[:i] + one[i + 1 :], []).append(r)
        for row in rows.values():
            group = dist.new_group(row)
            if dist.get_rank() in row:
                groups[axis], members[axis] = group, row
    here = dict(zip(axes, place))
    weights = {n: part[n].clone().requires_grad_() for n in ("scale", "w1", "b1", "w2", "b2")}
    at, stages = here["pp"], members["pp"]
    x = part["x"]
    if at:
        x = torch.empty(len(torch.arange(samples).chunk(1)[0].tensor_split(sizes["dp"])[here["dp"]]), 4).double()
        dist.irecv(x, stages[at - 1]).wait()
    # Two pieces of graph, cut where tp ranks add up.
    entry = (weights["scale"].detach() * x).requires_grad_()
    product = torch.relu(entry @ weights["w1"].T + weights["b1"]) @ weights["w2"].T
    summed = product.detach().clone()
    dist.all_reduce(summed, group=groups["tp"])
    y = (x + summed + weights["b2"].detach()).requires_grad_()
    if at < sizes["pp"] - 1:
        back = torch.empty_like(y)
        works = [dist.isend(y.detach(), stages[at + 1]), dist.irecv(back, stages[at + 1])]
        for work in works:
            work.wait()
    else:
        (back,) = torch.autograd.grad((y - part["target"]).square().sum() / samples, y)
    names = ("w1", "b1", "w2")
    dentry, *found = torch.autograd.grad(product, [entry, *(weights[n] for n in names)], back)
    dentry = dentry.contiguous()
    dist.all_reduce(dentry, group=groups["tp"])
    if at:
        dist.send(back + dentry * weights["scale"].detach(), stages[at - 1])
    grads = dict(zip(names, found)) | {"b2": back.sum(0), "scale": (dentry * x).sum(0)}
    works = [dist.all_reduce(grads["scale"], group=groups["pp"], async_op=True)]
    works[0].wait()
    works = [dist.all_reduce(g, group=groups["dp"], async_op=True) for g in grads.values()]
    for work in works:
        work.wait()
    return grads
"""

MUTANTS = [
    (
        "gradients stay with their samples",
        "Only this rank's own samples are in it",
        ((_RETURN, "return grads"),),
    ),
    (
        "one order of axes, as the lesson's mesh has it",
        "the axes in the order in which they are given",
        ((_RANKS, '    axes = ("dp", "pp", "tp")\n' + _RANKS),),
    ),
    (
        "what goes into a cut matrix is not summed backward",
        "what has each of them of its gradient",
        ((_BACKWARD, "dscaled = da @ w1"),),
    ),
    (
        "what comes out of a cut matrix is not summed forward",
        "Is that output whole",
        ((_FORWARD, "y = x + hidden @ w2.T + b2"),),
    ),
    (
        "b2 comes once per tp rank",
        "with b2 in it once",
        ((_FORWARD, 'y = x + add(hidden @ w2.T + b2, "tp")'),),
    ),
    (
        "b2's gradient is summed over tp as well",
        "2 times too large",
        (('"b2": dy.sum(0)', '"b2": add(dy.sum(0), "tp")'),),
    ),
    (
        "the mean of the parts' means",
        "divided by its own number of samples",
        (
            (
                'dy = 2 * (y - part["target"]) / samples',
                'dy = 2 * (y - part["target"]) / mine / sizes["dp"]',
            ),
        ),
    ),
    (
        "each rank divides by its own samples, and nobody by the parts",
        "What is the whole batch's loss divided by",
        (
            (
                'dy = 2 * (y - part["target"]) / samples',
                'dy = 2 * (y - part["target"]) / mine',
            ),
        ),
    ),
    (
        "scale is each stage's own",
        "what one stage adds to it",
        ((_SCALE, '"scale": (dscaled * x).sum(0),'),),
    ),
    (
        "the next rank is the next stage",
        "every receive needs its send",
        ((_EXCHANGE, _EXCHANGE.replace("stages[stage + 1]", "rank + 1")),),
    ),
    (
        "parts are even",
        "how many samples has the part of each",
        (
            (
                'mine = len(torch.arange(samples).tensor_split(sizes["dp"])[here["dp"]])',
                'mine = samples // sizes["dp"]',
            ),
        ),
    ),
    (
        "the gradient is waited for before the output is sent",
        "They wait for each other",
        (
            (
                _EXCHANGE,
                "        dy = torch.empty_like(y)\n        dist.recv(dy, stages[stage + 1])\n        dist.send(y, stages[stage + 1])\n",
            ),
        ),
    ),
    (
        "never waited for",
        "off by",
        (
            (
                "        dist.recv(dy, stages[stage + 1])\n",
                "        dist.irecv(dy, stages[stage + 1])\n        dy = dy.clone()\n",
            ),
        ),
    ),
    (
        "sums by gathering all summands",
        "bytes are sent over tp",
        (
            (
                _REDUCE,
                "        all_of_them = [torch.empty_like(tensor) for _ in groups[axis][1]]\n"
                "        dist.all_gather(all_of_them, tensor, group=groups[axis][0])\n"
                "        return torch.stack(all_of_them).sum(0)\n",
            ),
        ),
    ),
    (
        "scale's gradient over all ranks at once",
        "Which axis is this message's",
        (
            (_SCALE, '"scale": (dscaled * x).sum(0),'),
            (
                _RETURN,
                'grads = {name: grad if name == "scale" else add(grad, "dp") for name, grad in grads.items()}\n'
                '    dist.all_reduce(grads["scale"])\n    grads["scale"] /= sizes["tp"]\n    return grads',
            ),
        ),
    ),
    (
        "the gradient goes back twice",
        "bytes are sent over pp",
        (
            (
                "        dist.send(dy + scale * dscaled, stages[stage - 1])\n",
                "        dist.send(dy + scale * dscaled, stages[stage - 1])\n        dist.send(x, stages[stage - 1])\n",
            ),
            (_EXCHANGE, _EXCHANGE + "        dist.recv(torch.empty_like(y), stages[stage + 1])\n"),
        ),
    ),
    (
        "PyTorch's mesh",
        "the answer uses torch.distributed.device_mesh.init_device_mesh",
        (
            (
                _RANKS,
                "    from torch.distributed.device_mesh import init_device_mesh\n"
                '    mesh = init_device_mesh("cpu", tuple(sizes[axis] for axis in axes), mesh_dim_names=axes)\n'
                + _RANKS,
            ),
        ),
    ),
    (
        "four gradients",
        "are wanted, in a dict",
        (('        "b2": dy.sum(0),\n', ""),),
    ),
]

MUTANTS.append(
    (
        "sums over dp through the store, where nothing is counted",
        "Where does the rest come from",
        (
            ("def mesh_step(", EVERYONES + "def mesh_step("),
            (
                _REDUCE,
                '        if axis == "dp":\n'
                "            found = everyones(tensor, axis)\n"
                "            return sum(found[member] for member in groups[axis][1])\n" + _REDUCE,
            ),
        ),
    )
)

NOTHING = [
    (
        "zeros",
        '\nimport torch\n\n\ndef mesh_step(axes, sizes, part, samples):\n    return {name: torch.zeros_like(part[name]) for name in ("scale", "w1", "b1", "w2", "b2")}\n',
    ),
]

ACCEPTED = [
    ("without groups and collectives, in one message over dp", _BY_MESSAGES),
    ("by autograd, and with messages that are waited for later", _AUTOGRAD),
    (
        "over dp first",
        edited(
            _BY_MESSAGES,
            (
                '    grads["scale"] = add((back * x).sum(0), "pp")\n',
                '    grads["scale"] = (back * x).sum(0)\n',
            ),
            (
                "    return {name: piece.view(shape) for name, piece, shape in zip(grads, pieces, shapes)}\n",
                "    found = {name: piece.view(shape) for name, piece, shape in zip(grads, pieces, shapes)}\n"
                '    return found | {"scale": add(found["scale"], "pp")}\n',
            ),
        ),
    ),
]
