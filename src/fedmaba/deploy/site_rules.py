"""What a site itself asks of a secure sum, whatever the server says. No torch.

Sites may sign their public keys, each with a key of its own, and check those of the others against
a list that they have. Then nobody between them can put keys of his own in their place. Signing is
that of the package `cryptography` (ECDSA with SHA-384).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmaba.deploy import secure
from fedmaba.deploy.site_names import key_fingerprint, read_sites
from fedmaba.deploy.validation import Refused
from fedmaba.errors import InputError
from fedmaba.results import files

SIGNER_BYTES, SIGNATURE_BYTES = 256, 150  # of a P-521 key and its signature, at most
MARKS = "secure-answers"  # in a site's folder: an empty file for each answer that it gives once
OLD_MARK_SECONDS = 30 * 24 * 3600.0
MARK_REMEDY = "this site needs a folder `keep` that it can write in"
NO_KEY = (
    "this site has a list of peers, and no key to sign its own keys with: start its SuperNode with "
    "--node-config 'signing-key=\"keys/north\"'"
)


@dataclass(frozen=True)
class SiteRules:
    """What a site holds to, from its app and its own --node-config.

    peers: the sites that it sums with, name = "SHA256:..." as FlowerStrategy(sites=...) reads it.
    signing_key: the file of its private key, as `ssh-keygen -t ecdsa` makes it.
    most_share: the largest share of the weight that one site may hold; 1.0 allows every share.
    keep: a folder of the site, for marks of what it answered.
    """

    peers: Mapping[str, str] = field(default_factory=dict)  # fingerprint -> site
    source: str = "peers"
    signing_key: Path | None = None
    most_share: float = 1.0
    keep: Path | None = None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        peers: str | Path | Mapping[str, object] | None = None,
        signing_key: str | Path | None = None,
        most_share: float = 1.0,
        keep: str | Path | None = None,
    ) -> SiteRules:
        """The rules of a node: its --node-config goes before what its app says."""
        named = str(config["peers"]) if "peers" in config else peers
        key, folder = config.get("signing-key", signing_key), config.get("keep", keep)
        shares = [check_most_share(v) for v in (most_share, config.get("most-share", 1.0))]
        listed: dict[str, str] = {}
        found = read_sites(named) if named else None
        for site, owner in (found.listed or {}).items() if found else ():
            if not owner.startswith("SHA256:"):
                raise InputError(f"{site} is {owner}: peers are known by keys, write SHA256:...")
            listed[owner] = site
        if listed and not key:
            raise InputError(NO_KEY)
        source = found.source if found else "peers"
        paths = [Path(str(p)) if p else None for p in (key, folder)]
        return cls(listed, source, paths[0], min(shares), paths[1])

    def signed(self, attempt: str, keys: Sequence[bytes]) -> dict[str, bytes]:
        """What proves that these public keys are this site's; nothing without a signing key."""
        if self.signing_key is None:
            return {}
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        private = _read_key(self.signing_key)
        form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        signature = private.sign(_text(attempt, keys), ec.ECDSA(hashes.SHA384()))
        return {"signer": private.public_key().public_bytes(*form), "signature": signature}

    def check_peers(self, attempt: str, keys: Sequence[Sequence[bytes]], proofs: object) -> None:
        """Raise Refused unless each place's keys are signed by another site of the list."""
        if not self.peers:
            return
        seen: dict[str, int] = {}
        for i, proof in enumerate(secure.read_list(proofs, "signatures", len(keys))):
            signer = _signer(attempt, keys[i], proof, i)
            if signer not in self.peers:
                raise Refused(
                    f"the keys at place {i} are signed by {signer}, which is not in {self.source}: "
                    "a stranger takes part, or the list is old"
                )
            if signer in seen:
                raise Refused(f"places {seen[signer]} and {i} are both {self.peers[signer]}")
            seen[signer] = i

    def check_shares(self, weights: Sequence[float], most: float) -> None:
        """Raise Refused if one of these sites holds too large a part of their weight."""
        secure.check_largest(weights, min(most, self.most_share))

    def answer_once(self, attempt: str, place: int, stage: str) -> None:
        """Leave a mark in the folder of this site; InputError if it is there already."""
        if self.keep is None:
            return
        name = hashlib.sha256(f"{attempt} {place} {stage}".encode()).hexdigest()
        if not files.leave_mark(self.keep / MARKS, name, MARK_REMEDY):
            raise InputError(
                f"this site has answered stage {stage!r} of this secure sum already: it answers "
                "each once"
            )

    def forget_old_marks(self) -> None:
        """Remove marks of attempts that are long over."""
        if self.keep is not None:
            files.remove_old_marks(self.keep / MARKS, OLD_MARK_SECONDS)


def check_most_share(value: object) -> float:
    """A share of the weight, above 0 and up to 1; else InputError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(str(value)) <= 1 or math.isnan(float(str(value))):
        raise InputError(f"most_share={value!r}: give a share above 0 and up to 1.0")
    return float(str(value))


def _text(attempt: str, keys: Sequence[bytes]) -> bytes:
    """What is signed: nothing else that is ever signed begins so."""
    told = secure.write_message({"attempt": attempt, "keys": list(keys)})
    return b"fedmaba keys of a secure sum\n" + told.encode()


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


def _signer(attempt: str, keys: Sequence[bytes], proof: object, place: int) -> str:
    """The fingerprint of who signed these keys, or Refused."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not isinstance(proof, dict):
        raise Refused(f"the keys at place {place} are not signed: each site needs a signing-key")
    signer = secure.read_bytes(proof.get("signer"), "a signer", most=SIGNER_BYTES)
    signature = secure.read_bytes(proof.get("signature"), "a signature", most=SIGNATURE_BYTES)
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        public = serialization.load_der_public_key(signer)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError
        public.verify(signature, _text(attempt, keys), ec.ECDSA(hashes.SHA384()))
        return key_fingerprint(public.public_bytes(*form))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise Refused(
            f"the signature at place {place} does not fit its keys: they were exchanged on their "
            "way"
        ) from None
