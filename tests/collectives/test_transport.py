"""GPU tensors: the staging through host memory with host tensors in a GPU's place; the rest where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import device, launch
from dtcourse.collectives import p2p, traffic
from dtcourse.collectives.wire.transport import Transport


def _staged():
    """Sends through the staging code, as a GPU tensor would be."""
    transport, other = Transport(dist.group.WORLD), 1 - dist.get_rank()
    x = torch.arange(6.0).reshape(2, 3) + dist.get_rank()
    y = torch.zeros(2, 3)
    sending = transport.post_from_gpu("send", x, other, 5)
    x.zero_()  # the copy is what travels
    receiving = transport.post_from_gpu("recv", y, other, 5)
    assert torch.equal(y, torch.zeros(2, 3))  # nothing is written before wait
    receiving.wait()
    sending.wait()
    assert receiving.is_completed()
    return y


def test_a_message_is_staged_in_host_memory():
    for rank, y in enumerate(launch(_staged, 2)):
        assert torch.equal(y, torch.arange(6.0).reshape(2, 3) + (1 - rank))


def test_nccl_receives_from_nobody_in_particular():
    with pytest.raises(ValueError, match="name the sending rank"):
        Transport(None, object()).post_from_gpu("recv", torch.ones(1), None, 0)


def _on_gpu():
    here, other = device.current(), 1 - dist.get_rank()
    x, y = torch.arange(1000.0, device=here) + dist.get_rank(), torch.empty(1000, device=here)
    with traffic.counting() as counted:
        p2p.exchange(x, other, y, other)
    z = x.clone()
    dist.all_reduce(z)
    device.synchronize()
    return y.cpu(), z.cpu(), counted.bytes_sent()


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_gpu_tensors_travel():
    for rank, (y, z, nbytes) in enumerate(launch(_on_gpu, 2, backend="ring", device="cuda")):
        assert torch.equal(y, torch.arange(1000.0) + (1 - rank))
        assert torch.equal(z, 2 * torch.arange(1000.0) + 1)
        assert nbytes == 4000
