"""Compression: gradients that take fewer bytes on the wire, and what that does to them.

In the order in which to read them:

    compressor.py    what a method is: from a vector to the bytes that travel, and back
    casts.py         16-bit floats, which can be added on the way; 8-bit floats with a scale
    chance.py        rounded up or down, so that the expectation is the number
    integers.py      8, 4 or 2 bits, a scale a block, rounded to the nearest or by chance
    qsgd.py          so many levels of a bucket's length, by chance
    ternary.py       TernGrad: -1, 0 or 1, by chance; ranks that share a scale add whole numbers
    signs.py         one bit a number
    onebit.py        1-bit SGD: one bit a number, two values a block
    vote.py          one bit there, one bit back: signSGD with majority vote
    bits.py          bits packed; rows that stay in the cache
    selection.py     the k largest of many, by a sample
    sparse.py        the largest numbers, or some that all ranks draw alike
    thresholds.py    what is above a threshold: fixed, sampled, or kept while it fits
    blocks.py        blocks and rows of largest norm
    sketches.py      sums of short pictures of long vectors: count-sketch, SketchedSGD, random projection
    unchanged.py     all of it: the degenerate case
    exchange.py      what every way of averaging sends
    averaging.py     the mean of all ranks' vectors, compressed on each of its ways; error feedback
    background.py    a bucket's messages in a thread of their own, while backward goes on
    comm_hook.py     all of it for DistributedDataParallel, ours and PyTorch's
    onebit_adam.py   1-bit Adam: an optimizer that sends its momentum
    deep_gradient.py deep gradient compression, whole: momentum that is kept where nothing is sent
    low_rank.py      PowerSGD: a matrix as two thin ones, for the same hook
"""

from dtcourse.compression.averaging import average
from dtcourse.compression.blocks import TopBlocks, TopRows
from dtcourse.compression.casts import Float8, HalfPrecision
from dtcourse.compression.comm_hook import CompressionState, compression_hook
from dtcourse.compression.compressor import Compressor, Payload, Residuals, Rounds
from dtcourse.compression.deep_gradient import (
    DeepGradientState,
    deep_gradient_hook,
    warm_up_ratio,
)
from dtcourse.compression.integers import IntegerQuantizer
from dtcourse.compression.low_rank import PowerSGDState
from dtcourse.compression.onebit import OneBitSGD
from dtcourse.compression.onebit_adam import OneBitAdam
from dtcourse.compression.qsgd import QSGD
from dtcourse.compression.signs import ScaledSign
from dtcourse.compression.sketches import CountSketch, RandomProjection, SketchedTopK
from dtcourse.compression.sparse import RandomK, TopK
from dtcourse.compression.ternary import TernGrad, TernGradState, average_ternary
from dtcourse.compression.thresholds import (
    AdaptiveThreshold,
    SampledThreshold,
    SignThreshold,
    Threshold,
)
from dtcourse.compression.unchanged import Unchanged
from dtcourse.compression.vote import MajorityVote, majority_vote

__all__ = [
    "QSGD",
    "AdaptiveThreshold",
    "CompressionState",
    "Compressor",
    "CountSketch",
    "DeepGradientState",
    "Float8",
    "HalfPrecision",
    "IntegerQuantizer",
    "MajorityVote",
    "OneBitAdam",
    "OneBitSGD",
    "Payload",
    "PowerSGDState",
    "RandomK",
    "RandomProjection",
    "Residuals",
    "Rounds",
    "SampledThreshold",
    "ScaledSign",
    "SignThreshold",
    "SketchedTopK",
    "TernGrad",
    "TernGradState",
    "Threshold",
    "TopBlocks",
    "TopK",
    "TopRows",
    "Unchanged",
    "average",
    "average_ternary",
    "compression_hook",
    "deep_gradient_hook",
    "majority_vote",
    "warm_up_ratio",
]
