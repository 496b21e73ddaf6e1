"""Signatures of sites: made with a site's key, known by its fingerprint. No torch.

Signing is that of the package `cryptography` (ECDSA with SHA-384).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmaba.deploy import secure
from fedmaba.deploy.site_names import key_fingerprint
from fedmaba.deploy.validation import Refused
from fedmaba.errors import InputError

SIGNER_BYTES, SIGNATURE_BYTES = 256, 150  # of a P-521 key and its signature, at most
PARTS = {"signer": SIGNER_BYTES, "signature": SIGNATURE_BYTES}  # of a proof


def keys_text(attempt: str, keys: Sequence[bytes]) -> bytes:
    """What a site signs of its public keys: no other text that is signed begins so."""
    told = secure.write_message({"attempt": attempt, "keys": list(keys)})
    return b"fedmaba keys of a secure sum\n" + told.encode()


def stayed_text(agreed: bytes, stayed: Sequence[int], left: Sequence[int]) -> bytes:
    """What a site signs of who stayed and who left; `agreed` names the attempt, weights, keys."""
    told = secure.write_message({"agreed": agreed, "stayed": list(stayed), "left": list(left)})
    return b"fedmaba list of a secure sum\n" + told.encode()


def sign(path: Path, text: bytes) -> dict[str, bytes]:
    """What proves that the owner of a key said this."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = _read_key(path)
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    signature = private.sign(text, ec.ECDSA(hashes.SHA384()))
    return {"signer": private.public_key().public_bytes(*form), "signature": signature}


def read_proof(found: Mapping[str, Any]) -> dict[str, bytes]:
    """What a message says of signer and signature; {} if nothing; else Refused."""
    return {n: secure.read_bytes(found[n], n, most=m) for n, m in PARTS.items() if n in found}


def signer_of(text: bytes, proof: Mapping[str, bytes]) -> str:
    """The fingerprint of who signed this; "" if the signature does not fit it."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        public = serialization.load_der_public_key(proof["signer"])
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return ""
        public.verify(proof["signature"], text, ec.ECDSA(hashes.SHA384()))
        return key_fingerprint(public.public_bytes(*form))
    except (KeyError, ValueError, UnsupportedAlgorithm, InvalidSignature):
        return ""


def signers_of_keys(attempt: str, keys: Sequence[Sequence[bytes]], proofs: object) -> list[str]:
    """Who signed each place's keys, by fingerprint; Refused where nobody did."""
    found = []
    for i, proof in enumerate(secure.read_list(proofs, "signatures", len(keys))):
        if not isinstance(proof, dict):
            raise Refused(f"the keys at place {i} are not signed: each site needs a signing-key")
        signer = signer_of(keys_text(attempt, keys[i]), read_proof(proof))
        if not signer:
            raise Refused(
                f"the signature at place {i} does not fit its keys: they were exchanged on their "
                "way"
            )
        found.append(signer)
    return found


def _read_key(path: Path) -> Any:
    """The private key in a file, as OpenSSH or PEM has it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        content = path.read_bytes()
        ssh = b"OPENSSH PRIVATE KEY" in content
        load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
        found = load(content, None)
    except OSError as error:
        raise InputError(f"signing-key {path}: {error.strerror}: name the file of a key") from None
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"signing-key {path} holds no key without a password that ECDSA can sign with: make "
            "one by ssh-keygen -t ecdsa -b 384"
        )
    return found
