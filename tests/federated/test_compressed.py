"""A client's change travels compressed: the compressor is passed in, its bytes are counted, ranks change nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.compression import QSGD, Identity, RandomK, TopK
from dtcourse.federated import ClientWork, FedAvg
from tests.federated.references import LR, SEED, build, federation

COMPRESSORS = {
    "all": lambda seed: Identity(takes=torch.float64),
    "top": lambda seed: TopK(0.1),
    "random": lambda seed: RandomK(0.1, seed=seed),
    "QSGD": lambda seed: QSGD(seed=seed),
    "none": None,
}


def compressed():
    found = {}
    for name, compress in COMPRESSORS.items():
        work = ClientWork(F.cross_entropy, LR, 3, 5)
        federated = FedAvg(build(), federation(), work, 6, SEED, compress=compress)
        found[name] = [federated.round() for _ in range(2)], federated.x
    return found


def test_what_is_compressed_counts_and_ranks_do_not():
    alone = compressed()
    for found in launch(compressed, 2, backend="ring", timeout=240):
        for name, (reports, x) in found.items():
            assert reports == alone[name][0], name
            # QSGD adds the rank to its seed, as its ranks in one mean are to draw apart
            if name != "QSGD":
                torch.testing.assert_close(x, alone[name][1], rtol=0, atol=1e-12)
    assert torch.equal(alone["all"][1], alone["none"][1])
    n = len(alone["none"][1])
    for name in ("all", "top", "random", "QSGD"):
        each = COMPRESSORS[name](0).nbytes(n)
        assert [r.up_bytes for r in alone[name][0]] == [
            each * len(r.trained) for r in alone[name][0]
        ]
    up = {name: alone[name][0][0].up_bytes for name in COMPRESSORS}
    assert up["random"] < up["QSGD"] < up["top"] < up["all"] == up["none"]
    assert up["top"] < 0.2 * up["none"]
    for name in ("top", "random", "QSGD"):
        assert not torch.allclose(alone[name][1], alone["none"][1], rtol=0, atol=1e-6)
