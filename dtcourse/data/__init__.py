"""Real data of a size for two cores: digits, text, and images of your own.

Nothing is downloaded. The digits come with scikit-learn, the text with Python itself; a path gives your own.
Both are loaded only when they are asked for, so importing this package is cheap in every rank.
"""

from dtcourse.data.cache import Cached
from dtcourse.data.digit_images import Digits, digits
from dtcourse.data.image_folders import ImageFolder, image_folder, write_images
from dtcourse.data.loader import ResumableLoader
from dtcourse.data.prefetch import Prefetcher
from dtcourse.data.sampler import DistributedSampler
from dtcourse.data.shards import ShardedStream, deal_by_size, write_shards
from dtcourse.data.storage import EmulatedStorage
from dtcourse.data.token_batches import TokenBatchSampler
from dtcourse.data.token_text import ByteTokenizer, CharTokenizer, TokenDataset, text

__all__ = [
    "ByteTokenizer",
    "Cached",
    "CharTokenizer",
    "Digits",
    "DistributedSampler",
    "EmulatedStorage",
    "ImageFolder",
    "Prefetcher",
    "ResumableLoader",
    "ShardedStream",
    "TokenBatchSampler",
    "TokenDataset",
    "deal_by_size",
    "digits",
    "image_folder",
    "text",
    "write_images",
    "write_shards",
]
