"""What a site itself asks of a secure sum, whatever the server says. No torch.

Sites may sign their public keys, each with a key of its own, and check those of the others against
a list that they have. Then nobody between them can put keys of his own in their place. Before such
a site helps to open a sum it sees that enough others were told the same list of who stayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmaba.deploy import secure, signatures
from fedmaba.deploy.settings import check_numbers
from fedmaba.deploy.site_memory import SiteMemory
from fedmaba.deploy.site_names import read_sites
from fedmaba.deploy.validation import Refused
from fedmaba.errors import InputError

NO_KEY = (
    "this site has a list of peers, and no key to sign its own keys with: start its SuperNode with "
    "--node-config 'signing-key=\"keys/north\"'"
)
NO_FOLDER = (
    "this site has a list of peers, and no folder to remember which sums it helped to open: "
    "start its SuperNode with --node-config 'keep=\"/data/north-kept\"'"
)


@dataclass(frozen=True)
class SiteRules:
    """What a site holds to, from its app and its own --node-config.

    peers: the sites that it sums with, name = "SHA256:..." as FlowerStrategy(sites=...) reads it.
    signing_key: the file of its private key, as `ssh-keygen -t ecdsa` makes it.
    most_share: the largest share of the weight that one site may hold; 1.0 allows every share.
    keep: a folder of the site, where it remembers what it answered.
    most_rounds: in how many rounds it takes part, in all; None: in any number.
    """

    peers: Mapping[str, str] = field(default_factory=dict)  # fingerprint -> site
    source: str = "peers"
    signing_key: Path | None = None
    most_share: float = secure.MOST_SHARE
    keep: Path | None = None
    most_rounds: int | None = None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        peers: str | Path | Mapping[str, object] | None = None,
        signing_key: str | Path | None = None,
        most_share: float | None = None,
        keep: str | Path | None = None,
        most_rounds: int | None = None,
    ) -> SiteRules:
        """The rules of a node: its --node-config goes before what its app says.

        Of two limits the lower one holds.
        """
        named = str(config["peers"]) if "peers" in config else peers
        key, folder = config.get("signing-key", signing_key), config.get("keep", keep)
        shares = [v for v in (most_share, config.get("most-share")) if v is not None]
        rounds = [v for v in (most_rounds, config.get("most-rounds")) if v is not None]
        listed: dict[str, str] = {}
        found = read_sites(named) if named else None
        for site, owner in (found.listed or {}).items() if found else ():
            if not owner.startswith("SHA256:"):
                raise InputError(f"{site} is {owner}: peers are known by keys, write SHA256:...")
            listed[owner] = site
        if listed and not key:
            raise InputError(NO_KEY)
        if listed and not folder:
            raise InputError(NO_FOLDER)
        source = found.source if found else "peers"
        paths = [Path(str(p)) if p else None for p in (key, folder)]
        for one in shares:
            secure.check_most_share(one)
        for one in rounds:
            check_numbers(1, whole=True, most_rounds=one)
        share, most = min(shares, default=secure.MOST_SHARE), min(rounds, default=None)
        return cls(listed, source, paths[0], share, paths[1], most)

    @property
    def memory(self) -> SiteMemory:
        return SiteMemory(self.keep)

    def take_round(self, site: str) -> None:
        """Count a round before this site answers it; InputError beyond its limit."""
        if self.most_rounds is not None:
            self.memory.take_round(site, self.most_rounds)

    def signed(self, attempt: str, keys: Sequence[bytes]) -> dict[str, bytes]:
        """What proves that these public keys are this site's; nothing without a signing key."""
        if self.signing_key is None:
            return {}
        return signatures.sign(self.signing_key, signatures.keys_text(attempt, keys))

    def check_peers(
        self, attempt: str, keys: Sequence[Sequence[bytes]], proofs: object, least: int
    ) -> list[str]:
        """Who signed each place's keys: each another site of the list; else Refused.

        Without a list nobody is asked for, and this is empty.
        """
        if not self.peers:
            return []
        why = secure.wrong_threshold(least, len(keys), signed=True)
        if why:
            raise Refused(f"of {len(keys)} sites, {why}")
        signers = signatures.signers_of_keys(attempt, keys, proofs)
        for i, signer in enumerate(signers):
            if signer not in self.peers:
                raise Refused(
                    f"the keys at place {i} are signed by {signer}, which is not in {self.source}: "
                    "a stranger takes part, or the list is old"
                )
            if signer in signers[:i]:
                first = signers.index(signer)
                raise Refused(f"places {first} and {i} are both {self.peers[signer]}")
        return signers

    def sign_stayed(
        self, agreed: bytes, stayed: Sequence[int], left: Sequence[int]
    ) -> dict[str, bytes]:
        """What proves that this site was told this list; nothing without a signing key."""
        if self.signing_key is None:
            return {}
        text = signatures.stayed_text(agreed, stayed, left)
        return signatures.sign(self.signing_key, text)

    def check_stayed(
        self,
        agreed: bytes,
        stayed: Sequence[int],
        left: Sequence[int],
        signers: Sequence[str],
        proofs: object,
        least: int,
    ) -> None:
        """Refused unless `least` of those that stayed were told the same list as this site.

        Else the server could tell some that a site stayed and others that it left, and so get both
        secrets of that site (Bonawitz et al. 2017, the round of consistency checks).
        """
        if not self.peers:
            return
        text = signatures.stayed_text(agreed, stayed, left)
        given = secure.read_list(proofs, "signatures", len(signers))
        valid = [
            i
            for i in stayed
            if isinstance(given[i], dict)
            and signatures.signer_of(text, signatures.read_proof(given[i])) == signers[i]
        ]
        if len(valid) < least:
            raise Refused(
                f"{len(valid)} sites have signed this list of who stayed: {least} are needed, so "
                "that no site was told another one"
            )

    def check_shares(self, weights: Sequence[float], most: float) -> None:
        """Raise Refused if one of these sites holds too large a part of their weight."""
        secure.check_largest(weights, min(most, self.most_share))
