"""The ready-made cryptography under secure aggregation: key agreement, sealed and signed messages, masks from a seed.

X25519, Ed25519, HKDF, AES-GCM and AES in counter mode come from the `cryptography` package (the extra `federated`);
nothing of the kind is written here.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEY_BYTES = 32
NONCE_BYTES = 12
DIGEST_BYTES = 32
SEALED_BYTES = NONCE_BYTES + 2 * 66 + 16  # of two shares, with AES-GCM's tag


def library() -> Any:
    """The parts of `cryptography` that are used. Raises ImportError, with what to install, where it is not here."""
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as missing:
        raise ImportError(
            "secure aggregation needs the package `cryptography`: pip install cryptography, or "
            "pip install 'dtcourse[federated]'"
        ) from missing
    return SimpleNamespace(
        InvalidSignature=InvalidSignature,
        InvalidTag=InvalidTag,
        hashes=hashes,
        ed25519=ed25519,
        x25519=x25519,
        Cipher=Cipher,
        algorithms=algorithms,
        modes=modes,
        AESGCM=AESGCM,
        HKDF=HKDF,
    )


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key pair, as bytes: 32 each."""

    private: bytes
    public: bytes

    @classmethod
    def drawn(cls) -> KeyPair:
        """A new one, from the system's secure generator."""
        return cls.of(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """The pair that has this private key."""
        key = library().x25519.X25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """The key (32 bytes) that this pair and the owner of `public` share, for one purpose."""
        lib = library()
        own = lib.x25519.X25519PrivateKey.from_private_bytes(self.private)
        secret = own.exchange(lib.x25519.X25519PublicKey.from_public_bytes(public))
        return lib.HKDF(lib.hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


@dataclass(frozen=True)
class SigningPair:
    """An Ed25519 key pair, as bytes: 32 each."""

    private: bytes
    public: bytes

    @classmethod
    def drawn(cls) -> SigningPair:
        """A new one, from the system's secure generator."""
        private = secrets.token_bytes(KEY_BYTES)
        key = library().ed25519.Ed25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """64 bytes, which nobody makes without the private key."""
        key = library().ed25519.Ed25519PrivateKey.from_private_bytes(self.private)
        return bytes(key.sign(message))


def signed_by(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of `public` has signed this message."""
    lib = library()
    try:
        lib.ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (lib.InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypts: without the key nobody can read or change it. context: it opens with the same one alone."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + library().AESGCM(key).encrypt(nonce, plain, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What was sealed. Raises ValueError where it is not what was sealed with this key and context."""
    lib = library()
    try:
        return lib.AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except lib.InvalidTag:
        raise ValueError("the message was changed on its way, or is not for this client") from None


def mask(seed: bytes, n: int, dtype: torch.dtype) -> Tensor:
    """(n,) of int32 or int64, all values alike, which nobody without the 32 bytes of the seed tells from chance."""
    lib = library()
    cipher = lib.Cipher(lib.algorithms.AES(seed), lib.modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(n * dtype.itemsize))
    numbers = np.frombuffer(stream, dtype={4: "<i4", 8: "<i8"}[dtype.itemsize])
    # the same numbers on a machine of the other byte order
    return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("=")))


def digest(secret: bytes) -> bytes:
    """32 bytes by which a secret is known again, and not found out."""
    return hashlib.sha256(b"dtcourse secure aggregation" + secret).digest()
