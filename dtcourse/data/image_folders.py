"""Images of your own in ImageNet's layout: a folder for each class, image files in it.

    flowers/
        daisy/  0001.jpg  0002.jpg ...
        tulip/  a.png ...

Images are opened when they are asked for, with Pillow alone; the list of files is read once and sorted, so every rank
that sees the same folder agrees on every index.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from dtcourse.data.storage import Opener, local
from dtcourse.plural import plural

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageFolder(Dataset):
    """Pairs (image_CHW, class number): float32 in [0, 1] of shape (3, size, size), and an int.

    classes: the folders' names, sorted; class_to_index: name to number; samples: (path, class number), sorted
    targets: the class number of each sample, without opening a file
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size: int = 64,
        transform: Callable[[Image.Image], Any] | None = None,
        opener: Opener = local,
    ) -> None:
        root = Path(path)
        if not root.is_dir():
            raise ValueError(f"no folder at {root}")
        if size < 1:
            raise ValueError(f"size is at least 1 pixel; got {size}")
        self.classes = sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != ".")
        if not self.classes:
            raise ValueError(
                f"{root} has no folders in it: one folder a class is expected, {root}/CLASS/IMAGE.png"
            )
        self.class_to_index = {name: i for i, name in enumerate(self.classes)}
        self.samples: list[tuple[Path, int]] = []
        for name, index in self.class_to_index.items():
            files = sorted(
                p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()
            )
            if not files:
                raise ValueError(
                    f"the class folder {root / name} holds no image ({', '.join(sorted(SUFFIXES))}): "
                    "put one in, or remove the folder"
                )
            self.samples += [(file, index) for file in files]
        self.root, self.size, self.transform, self.opener = root, size, transform, opener

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        transform = self.transform or self.centre
        return transform(self.open(index)), self.samples[index][1]

    @property
    def targets(self) -> list[int]:
        """The class number of each sample."""
        return [target for _, target in self.samples]

    def open(self, index: int) -> Image.Image:
        """The picture itself, as RGB (grey and transparent ones are converted)."""
        from PIL import Image

        path = self.samples[index][0]
        try:
            with self.opener(path) as file, Image.open(file) as image:
                return image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(
                f"cannot read the image {path} ({path.stat().st_size if path.exists() else 'no'} bytes): {error}"
            ) from error

    def centre(self, image: Image.Image) -> torch.Tensor:
        """The shorter side scaled to `size`, then the square in the middle: what a test set is read with."""
        width, height = image.size
        scale = self.size / min(width, height)
        # Rounding may not make a side shorter than the square that is cut from it.
        width, height = (max(self.size, round(n * scale)) for n in (width, height))
        left, top = (width - self.size) // 2, (height - self.size) // 2
        square = image.resize((width, height)).crop((left, top, left + self.size, top + self.size))
        return as_tensor(square)

    def __repr__(self) -> str:
        return f"ImageFolder({plural(len(self), 'image')} in {plural(len(self.classes), 'class', 'classes')})"


def as_tensor(image: Image.Image) -> torch.Tensor:
    """An RGB picture as float32 in [0, 1], (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


def image_folder(
    path: str | Path,
    *,
    size: int = 64,
    transform: Callable[[Image.Image], Any] | None = None,
    opener: Opener = local,
) -> ImageFolder:
    """The images under `path`, one folder a class, each cut to (3, size, size).

    transform: takes the RGB picture (a PIL image) and replaces the default, scaling and cutting out the middle
    opener: gives a path's open file (EmulatedStorage.open)
    A missing or empty folder is a ValueError now; an unreadable image is one when it is asked for, with its path.
    """
    return ImageFolder(path, size=size, transform=transform, opener=opener)


def write_images(path: str | Path, images: torch.Tensor, labels: torch.Tensor) -> Path:
    """Writes images as PNG files in ImageNet's layout: path/<label>/<number>.png. Returns the path.

    images: float in [0, 1], (N, 1 or 3, H, W).  labels: integers, (N,).
    """
    from PIL import Image

    root = Path(path)
    width = len(str(int(labels.max())))
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        folder = root / f"{label:0{width}d}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).numpy()
        Image.fromarray(pixels).save(folder / f"{number:06d}.png")
    return root
