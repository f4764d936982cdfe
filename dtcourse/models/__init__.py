"""Plain models that know nothing of parallelism, and exact counts of what they hold and compute.

A technique wraps these or replaces their parts from outside; nothing in here asks how many ranks there are.
Every constructor takes a seed: the same seed gives the same weights on every rank, and the caller's random state
stays as it was.
"""

from dtcourse.models import flops
from dtcourse.models.convnet import ConvNet
from dtcourse.models.counting import parameter_count, transformer_parameters
from dtcourse.models.gates import BiasBalancedGate, ExpertChoiceGate, TopKGate
from dtcourse.models.mlp import MLP
from dtcourse.models.moe import Experts, MoE
from dtcourse.models.published import PUBLISHED
from dtcourse.models.resnet import ResNet
from dtcourse.models.rotary import Rotary
from dtcourse.models.seeding import seeded
from dtcourse.models.transformer import (
    CausalAttention,
    FusedCausalAttention,
    Transformer,
    TransformerConfig,
)

__all__ = [
    "MLP",
    "PUBLISHED",
    "BiasBalancedGate",
    "CausalAttention",
    "ConvNet",
    "ExpertChoiceGate",
    "Experts",
    "FusedCausalAttention",
    "MoE",
    "ResNet",
    "Rotary",
    "TopKGate",
    "Transformer",
    "TransformerConfig",
    "flops",
    "parameter_count",
    "seeded",
    "transformer_parameters",
]
