"""Secure aggregation: a server learns the sum of its clients' vectors, and no client's own.

In the order in which to read them:

    fixed_point.py  numbers as whole multiples of 2^-f modulo 2^k, which masks can be added to
    keys.py         key agreement, sealed messages and masks, from the package `cryptography`
    shamir.py       a secret as shares, of which any t give it back
    messages.py     what travels, in bytes
    client.py       what a client sends in each of five rounds, and what it refuses
    server.py       what the server does with it, and all that it has seen
    protocol.py     the five rounds, over ranks, with clients that drop out
"""

from dtcourse.federated.secure.client import Refused, SecureClient
from dtcourse.federated.secure.fixed_point import FixedPoint
from dtcourse.federated.secure.protocol import SecureSum, secure_sum
from dtcourse.federated.secure.server import SecureServer, Stopped, View

__all__ = [
    "FixedPoint",
    "Refused",
    "SecureClient",
    "SecureServer",
    "SecureSum",
    "Stopped",
    "View",
    "secure_sum",
]
