"""Compression: gradients that take fewer bytes on the wire, and what that does to them.

In the order in which to read them; each room says the same of its files:

    compressor.py  what a method is: from a vector to the bytes that travel, and back
    identity.py    all of it: the degenerate case
    wire/          the mean of all ranks' vectors, compressed, by four schemes; a hook for DistributedDataParallel
    bits.py        bits packed; rows that stay in the cache
    quantized/     fewer bits a number: floats, integers, TernGrad, signs; QSGD, 1-bit SGD, 1-bit Adam
    sparse/        fewer numbers: the largest, some drawn alike, blocks; deep gradient compression
    sketches/      sums of short pictures of long vectors: count-sketch, SketchedSGD, random projection
    low_rank.py    PowerSGD: a matrix as two thin ones, for the same hook; matrices.py is its linear algebra
"""

from dtcourse.compression.compressor import Compressor, Payload, Residuals, Rounds
from dtcourse.compression.identity import Identity
from dtcourse.compression.low_rank import PowerSGDState
from dtcourse.compression.quantized.casts import Float8, HalfPrecision
from dtcourse.compression.quantized.elias import EliasQSGD
from dtcourse.compression.quantized.integers import IntegerQuantizer
from dtcourse.compression.quantized.onebit import OneBitSGD
from dtcourse.compression.quantized.onebit_adam import OneBitAdam
from dtcourse.compression.quantized.qsgd import QSGD
from dtcourse.compression.quantized.signs import ScaledSign
from dtcourse.compression.quantized.ternary import TernGrad, TernGradState, average_ternary
from dtcourse.compression.quantized.vote import MajorityVote, majority_vote
from dtcourse.compression.sketches.count_sketch import CountSketch
from dtcourse.compression.sketches.random_projection import RandomProjection
from dtcourse.compression.sketches.sketched_top_k import SketchedTopK
from dtcourse.compression.sparse.blocks import TopBlocks, TopRows
from dtcourse.compression.sparse.deep_gradient import (
    DeepGradientState,
    deep_gradient_hook,
    warm_up_ratio,
)
from dtcourse.compression.sparse.thresholds import (
    AdaptiveThreshold,
    SampledThreshold,
    SignThreshold,
    Threshold,
)
from dtcourse.compression.sparse.top_k import RandomK, TopK
from dtcourse.compression.wire.averaging import average
from dtcourse.compression.wire.comm_hook import CompressionState, compression_hook

__all__ = [
    "QSGD",
    "AdaptiveThreshold",
    "CompressionState",
    "Compressor",
    "CountSketch",
    "DeepGradientState",
    "EliasQSGD",
    "Float8",
    "HalfPrecision",
    "Identity",
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
    "average",
    "average_ternary",
    "compression_hook",
    "deep_gradient_hook",
    "majority_vote",
    "warm_up_ratio",
]
