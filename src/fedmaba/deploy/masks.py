"""The cryptography of secure sums, by name: Flower's functions and those of `cryptography`.

Keys are agreed on the curve P-384, secrets are split by Shamir's scheme, messages between sites are
sealed with Fernet: all by Flower's own functions. Masks are a key stream of AES-256 in counter
mode. Flower's own generator of masks is not used: it shortens every key to 32 bits. No torch.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmaba.deploy.secure import MaskedWords
from fedmaba.deploy.validation import Refused

PUBLIC_BYTES = 49  # a point of P-384, compressed
SEED_BYTES = 15  # 120 bits: with its padding, one block of Flower's Shamir shares
SHARE_BYTES = 20  # of a seed: the place, then one block


def hashed(value: bytes) -> bytes:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(value).digest()


def new_seed() -> bytes:
    """A new secret that can be split."""
    return secrets.token_bytes(SEED_BYTES)


def new_key() -> tuple[bytes, bytes]:
    """A new private key and its public key."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs

    private, _ = generate_key_pairs()
    secret = private.private_numbers().private_value.to_bytes(48, "big")
    return secret, public_key(secret)


def public_key(secret: bytes) -> bytes:
    """The public key of a private key; Refused if it is none."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    return bytes(_private(secret).public_key().public_bytes(*form))


def agree(secret: bytes, public: bytes) -> bytes:
    """The key that two owners of keys share, as Fernet takes it; Refused if `public` is none."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

    return bytes(generate_shared_key(_private(secret), load_public_key(public)))


def load_public_key(public: bytes) -> Any:
    """A public key that is a point of the curve, or Refused."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        if len(public) != PUBLIC_BYTES:
            raise ValueError
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), public)
    except ValueError:
        raise Refused("a public key is no point of the curve P-384") from None


def _private(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1())
    except ValueError:
        raise Refused("a private key is no number of the curve P-384") from None


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt for who has the same key."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt

    return bytes(encrypt(key, text))


def unseal(key: bytes, token: bytes) -> bytes:
    """What was sealed with this key, or Refused."""
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt

    try:
        return bytes(decrypt(key, token))
    except InvalidToken:
        raise Refused("a sealed message does not open") from None


def seed_key(seed: bytes, purpose: bytes) -> bytes:
    """A key for `seal` that is made from a seed."""
    return base64.urlsafe_b64encode(_derive(seed, purpose))


def split_seed(seed: bytes, least: int, sites: int) -> list[bytes]:
    """Shares of a seed, one for each place; any `least` of them give it back."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return list(create_shares(seed, least, sites))


def join_shares(shares: Sequence[bytes]) -> bytes:
    """The seed behind these shares, or Refused. It may be another one if a share is wrong."""
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        return bytes(combine_shares(list(shares)))
    except ValueError:
        raise Refused("the shares of a secret do not fit together") from None


def own_mask(seed: bytes, agreement: bytes, size: int) -> MaskedWords:
    """The mask that a site adds for itself."""
    return _stream(_derive(seed, b"fedmaba own mask " + agreement), size)


def pair_mask(shared: bytes, agreement: bytes, size: int) -> MaskedWords:
    """The mask of two sites: the one with the lower place adds it, the other takes it off."""
    return _stream(_derive(shared, b"fedmaba pair mask " + agreement), size)


def _derive(secret: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose)
    return bytes(kdf.derive(secret))


def _stream(key: bytes, size: int) -> MaskedWords:
    """(size,) random words; the key is used for this alone, so the counter starts at 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), np.dtype("<u4"))
