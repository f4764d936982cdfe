"""The datasets: the same for everybody with the same seed, split without overlap, and mistakes named."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dtcourse import data


def test_digits_split_is_a_partition_and_fixed() -> None:
    train, test, everything = (data.digits(s) for s in ("train", "test", "all"))
    assert (len(train), len(test), len(everything)) == (1438, 359, 1797)
    assert train.images.shape == (1438, 1, 8, 8)
    assert train.images.dtype == torch.float32
    assert train.labels.dtype == torch.int64
    assert train.images.min() == 0
    assert train.images.max() == 1
    assert torch.equal(torch.cat([test.labels, train.labels]), everything.labels)
    assert torch.equal(torch.cat([test.images, train.images]), everything.images)
    # Every digit is in both, in roughly equal parts (a plain shuffle: nothing forces them to be equal).
    for part in (train, test):
        assert (part.labels.bincount(minlength=10) / len(part)).sub(0.1).abs().max() < 0.05


def test_digits_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    a = data.digits(seed=1)
    torch.manual_seed(6)
    assert torch.equal(a.images, data.digits(seed=1).images)
    assert not torch.equal(a.labels, data.digits(seed=2).labels)


def test_digits_given_out_may_be_changed() -> None:
    data.digits().images.zero_()
    assert data.digits().images.max() == 1


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits()
    ours = data.digits("all", flat=True)
    assert ours.images.shape == (1797, 64)
    key = sorted((tuple(x), int(y)) for x, y in zip(raw.data, raw.target, strict=True))
    assert key == sorted(
        (tuple((16 * x).tolist()), int(y)) for x, y in zip(ours.images, ours.labels, strict=True)
    )


@pytest.mark.parametrize("wrong", [{"split": "val"}, {"test_fraction": 0.0}, {"test_fraction": 1}])
def test_digits_mistakes(wrong) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        data.digits(**wrong)


# --- text


@pytest.mark.parametrize("level", ["byte", "char"])
def test_text_splits_meet_and_do_not_overlap(level) -> None:
    train, test, everything = (data.text(level=level, split=s) for s in ("train", "test", "all"))
    assert torch.equal(torch.cat([train.tokens, test.tokens]), everything.tokens)
    assert len(everything.tokens) > 300_000
    assert abs(len(test.tokens) / len(everything.tokens) - 0.1) < 0.001
    assert train.tokens.max() < train.tokenizer.vocab
    assert train.tokenizer.vocab == test.tokenizer.vocab
    assert "statement" in train.decode(train.tokens)


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 25))
def test_blocks_and_targets(n, length, stride) -> None:
    tokens = torch.arange(n)
    if n < length + 1:
        with pytest.raises(ValueError, match=f"{n} tokens .* needs {length + 1}"):
            data.TokenDataset(tokens, length, stride=stride)
        return
    blocks = data.TokenDataset(tokens, length, stride=stride)
    for i in range(len(blocks)):
        x, y = blocks[i]
        assert x.tolist() == list(range(i * stride, i * stride + length))
        assert torch.equal(y, x + 1)
    # No further block would fit, and iteration ends.
    assert len(blocks) * stride + length + 1 > n
    assert len(list(blocks)) == len(blocks)
    assert torch.equal(blocks[-1][0], blocks[len(blocks) - 1][0])


def test_default_blocks_read_every_token_once() -> None:
    blocks = data.text(length=100)
    seen = torch.cat([x for x, _ in blocks])
    assert torch.equal(seen, blocks.tokens[: len(seen)])
    assert len(blocks.tokens) - len(seen) <= 100


@given(st.text())
def test_tokenizers_give_the_text_back(string) -> None:
    for tokenizer in (data.ByteTokenizer(), data.CharTokenizer(string)):
        try:
            string.encode()
        except UnicodeEncodeError:
            return
        tokens = tokenizer.encode(string)
        assert tokenizer.decode(tokens) == string
        assert all(0 <= t < tokenizer.vocab for t in tokens.tolist())


def test_char_tokenizer_names_an_unknown_character() -> None:
    with pytest.raises(ValueError, match="'z' is not among the 3"):
        data.CharTokenizer("abc").encode("az")


def test_own_text_file_and_folder(tmp_path) -> None:
    (tmp_path / "b.txt").write_text("second " * 30, encoding="utf-8")
    (tmp_path / "a.txt").write_text("först " * 30, encoding="utf-8")
    one = data.text(tmp_path / "a.txt", split="all", length=8)
    assert one.decode(one.tokens) == "först " * 30
    both = data.text(tmp_path, level="char", split="all", length=8)
    assert both.decode(both.tokens) == "först " * 30 + "\n\n" + "second " * 30


def test_text_mistakes(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no text file at .*nothing"):
        data.text(tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match=r"no \*.txt file"):
        data.text(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="byte 3 is 0xe9"):
        data.text(tmp_path / "latin.txt")
    with pytest.raises(ValueError, match="words"):
        data.text(level="words")
    with pytest.raises(ValueError, match="float32 of shape"):
        data.TokenDataset(torch.zeros(5), 2)
    with pytest.raises(ValueError, match="no tokenizer"):
        data.TokenDataset(torch.arange(5), 2).decode([1])


# --- image folders


@pytest.fixture
def folder(tmp_path) -> Path:
    """Forty real digits as PNG files, in ImageNet's layout."""
    digits = data.digits("test")
    for i in range(40):
        place = tmp_path / "images" / f"digit-{int(digits.labels[i])}"
        place.mkdir(parents=True, exist_ok=True)
        grey = (digits.images[i, 0] * 255).round().to(torch.uint8).numpy()
        Image.fromarray(grey).save(place / f"{i:02}.png")
    return tmp_path / "images"


def test_image_folder_reads_what_was_written(folder) -> None:
    digits, images = data.digits("test"), data.image_folder(folder, size=8)
    assert len(images) == 40
    assert images.classes == sorted({f"digit-{int(d)}" for d in digits.labels[:40]})
    assert images.samples == sorted(images.samples)
    for i, (path, target) in enumerate(images.samples):
        x, y = images[i]
        assert (y, images.targets[i]) == (target, target)
        assert images.classes[y] == f"digit-{int(digits.labels[int(path.stem)])}"
        assert x.shape == (3, 8, 8)
        original = digits.images[int(path.stem)].expand(3, 8, 8)
        torch.testing.assert_close(x, original, rtol=0, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize("shape", [(10, 10), (7, 31), (31, 7), (300, 1), (1, 300)])
def test_every_shape_and_mode_becomes_a_square(tmp_path, shape) -> None:
    (tmp_path / "a").mkdir()
    for mode in ("L", "RGB", "RGBA", "P", "1"):
        Image.new(mode, shape).save(tmp_path / "a" / f"{mode}.png")
    images = data.image_folder(tmp_path, size=9)
    assert all(x.shape == (3, 9, 9) and x.dtype == torch.float32 for x, _ in images)


def test_a_transform_of_ones_own(folder) -> None:
    images = data.image_folder(folder, transform=lambda picture: picture.size)
    assert images[0] == ((8, 8), 0)


def test_image_folder_mistakes(tmp_path, folder) -> None:
    with pytest.raises(ValueError, match=r"no folder at .*nowhere"):
        data.image_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no folders in it"):
        data.image_folder(tmp_path / "empty")
    (folder / "zebra").mkdir()
    with pytest.raises(ValueError, match="zebra holds no image"):
        data.image_folder(folder)
    (folder / "zebra" / "broken.png").write_bytes(b"not an image")
    images = data.image_folder(folder)
    with pytest.raises(ValueError, match=r"cannot read the image .*zebra.broken\.png \(12 bytes\)"):
        images[len(images) - 1]
    whole = (folder / "digit-1").glob("*.png").__next__().read_bytes()
    (folder / "zebra" / "broken.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"zebra.broken\.png"):
        images[len(images) - 1]
