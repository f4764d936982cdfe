"""ResNet has the published sizes, shapes and start, and learns."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import data
from dtcourse.models import ResNet, parameter_count


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_published_parameter_counts(depth, parameters):
    with torch.device("meta"):
        assert parameter_count(ResNet(depth)) == parameters


def test_the_form_for_small_images_has_its_published_size():
    with torch.device("meta"):
        assert parameter_count(ResNet(18, classes=10, small_images=True)) == 11_173_962


@pytest.mark.parametrize(("depth", "gmac"), [(18, 1.814), (50, 4.089)])
def test_published_work_per_image(depth, gmac):
    """1.8 and 4.1 billion multiplications for 224x224 pixels (2 operations each)."""
    with torch.device("meta"):
        model, x = ResNet(depth), torch.empty(1, 3, 224, 224)
        with FlopCounterMode(display=False) as counter:
            assert model(x).shape == (1, 1000)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmac, abs=0.001)


def test_every_block_starts_as_the_identity():
    model = ResNet(18, width=4, classes=3, small_images=True).eval()
    block = model.stages[0][0]
    x = torch.rand(2, 4, 6, 6)
    assert torch.equal(block(x), x)
    other = ResNet(18, width=4, classes=3, small_images=True, zero_init=False).eval()
    assert not torch.equal(other.stages[0][0](x), x)


def test_seeded_and_learns_the_digits():
    model = ResNet(18, width=4, classes=10, in_channels=1, small_images=True, seed=3)
    again = ResNet(18, width=4, classes=10, in_channels=1, small_images=True, seed=3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    images, labels = data.digits()[:64]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = model.loss(images, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2
    assert losses[-1] < 0.7


def test_mistakes():
    with pytest.raises(ValueError, match="18, 34, 50, 101, 152; got 20"):
        ResNet(20)
    with pytest.raises(ValueError, match="width=0"):
        ResNet(18, width=0)
