"""Which GPU a rank takes: by numbers alone, so it is tested where there is none."""

import pytest
import torch

from dtcourse import device


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        ("0,1,7,2", [0, 1]),
        ("-1,0", []),
        ("1,1", []),
        (" 1, 2", [1, 2]),
    ],
)
def test_the_visible_gpus_of_a_node_of_four(monkeypatch, said, seen):
    if said is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert device.visible_gpus(4) == seen


@pytest.mark.parametrize("said", ["", "2", "3,1", "0,1,2,3", "-1,0", "1,1", " 1, 2"])
def test_the_variable_is_read_as_torch_reads_it(monkeypatch, said):
    torch_reads = pytest.importorskip("torch.cuda")._parse_visible_devices
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert device.visible_gpus(4) == torch_reads()


def test_names_of_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f3a")
    with pytest.raises(ValueError, match="by number, from 0 to 3"):
        device.visible_gpus(4)


@pytest.mark.parametrize(
    ("index", "num_gpus", "words"),
    [
        (4, 4, "cuda:4 was asked for, and this process sees 4 GPUs, from cuda:0 on"),
        (1, 1, "sees 1 GPU, from"),
        (0, 0, "sees no GPU"),
        (-1, 2, "cuda:-1 was asked for"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(index, num_gpus, words):
    with pytest.raises(ValueError, match=words):
        device.require_gpu(index, num_gpus)


def test_a_gpu_that_is_there_is_given():
    assert device.require_gpu(3, 4) == torch.device("cuda", 3)


def test_a_rank_does_not_take_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match=f"cuda:{device.count()} was asked for"):
        device.use(torch.device("cuda", device.count()))
