"""The vectors that a site of a real federation keeps between rounds, in its own file. No torch.

The file never leaves the site. It holds each vector before and after the last training, with the
round that each belongs to. The server says in which round it last counted a reply of this site, and
training starts from the vectors after that round. So a site starts from the right vectors also when
the server repeats a round, or when a reply was lost or refused. The id of the federation is part of
the file's name, so the vectors of another federation are never used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedmaba.deploy.validation import SITE_NAME, forms
from fedmaba.errors import InputError
from fedmaba.results import array_files, files
from fedmaba.strategies.base import Local

Arrays = dict[str, NDArray[Any]]
Vectors = dict[str, Arrays]  # by the vector's name, then by the weight's
MAGIC = b"FEDMABAV"
FEDERATION = re.compile(r"[0-9a-f]{32}")
REMEDY = "fix it: this site takes no part until then"
log = logging.getLogger("flwr")  # what a SuperNode shows


@dataclass(frozen=True)
class KeptVectorsTask:
    """What the server's message says about kept vectors."""

    federation: str
    round: int
    counted: int  # the last round in which a reply of this site counted; 0: none did

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> KeptVectorsTask:
        """Read it from a message, or raise InputError."""
        federation = task.get("federation")
        rounds = [task.get("server-round"), task.get("kept-round")]
        known = isinstance(federation, str) and FEDERATION.fullmatch(federation)
        if not known or not all(type(r) is int and r >= 0 for r in rounds):
            raise InputError(
                "sites keep vectors here, but the server's message names no federation and "
                "rounds: use the same version of fedmaba on all hosts, and where sites keep "
                "BatchNorm, FlowerStrategy(batchnorm='local')"
            )
        return cls(str(federation), *map(int, rounds))  # type: ignore[arg-type]


@dataclass(frozen=True)
class KeptVectors:
    """The folder in which one site keeps its vectors."""

    folder: Path | None
    site: str

    def lost(self, told: KeptVectorsTask) -> bool:
        """Whether this site kept vectors, and has them no more."""
        return bool(told.counted) and not files.exists(self._path(told))

    def load(self, told: KeptVectorsTask, first: Vectors, in_mean: bool = False) -> Vectors:
        """The vectors to train with: those that the site kept, or `first` where it kept none yet.

        `in_mean`: the server keeps a mean over all sites that these vectors are part of. It would
        stay wrong for good if a site started anew, so a site that lost its vectors takes no part
        under the same name.
        """
        path = self._path(told)
        if not told.counted:
            log.info("the kept vectors of this site start from zero: %s", path)
            return first
        if self.lost(told) and in_mean:
            raise InputError(
                f"a reply of this site counted in round {told.counted}, but its kept vectors are "
                f"gone, and the server's mean still has them: {_remedy(path, in_mean)}"
            )
        if self.lost(told):
            log.warning(
                "a reply of this site counted in round %s, but its kept vectors are gone, so they "
                "start anew: %s",
                told.counted,
                path,
            )
            return first
        by_round = _read(path, told.federation, in_mean)
        found = by_round.get(told.counted)
        if found is None:
            rounds = " and ".join(map(str, sorted(by_round)))
            raise InputError(
                f"the kept vectors of this site are those after rounds {rounds}, but the server "
                f"goes on from round {told.counted}: {_remedy(path, in_mean)}"
            )
        if {n: forms(v) for n, v in found.items()} != {n: forms(v) for n, v in first.items()}:
            raise InputError(
                "the kept vectors of this site are of another model or strategy: "
                + _remedy(path, in_mean)
            )
        return found

    def save(self, told: KeptVectorsTask, before: Vectors, after: Vectors) -> None:
        """Save the vectors after a training, beside those of the last reply that counted."""
        names = list(after)
        arrays = {
            f"{moment}/{names.index(name)}/{weight}": value
            for moment, vectors in (("before", before), ("after", after))
            for name, vector in vectors.items()
            for weight, value in vector.items()
        }
        meta = {"before": told.counted, "after": told.round, "names": names}
        body = array_files.pack(arrays, {**meta, "federation": told.federation})
        digest = hashlib.sha256()
        for piece in body:
            digest.update(piece)
        path = self._path(told)
        files.make_private_folder(path.parent, REMEDY)
        files.write(path, MAGIC, digest.digest(), *body, remedy=REMEDY, private=True)
        files.remove_temporary_files(path.parent, path.name)

    def _path(self, told: KeptVectorsTask) -> Path:
        if self.folder is None:
            raise InputError(
                "sites keep vectors between rounds here, and this site has no folder for them: "
                "start its SuperNode with --node-config 'keep=\"/data/north-kept\"', or give "
                "client_app(keep=...)"
            )
        if not SITE_NAME.fullmatch(self.site):
            raise InputError(f"site {self.site[:64]!r}: give a name of letters, digits, . _ and -")
        return self.folder / f"{self.site}-{told.federation}.vectors"


def mean_name(local: Local, name: str, weight: str) -> str:
    """What a message calls the part of a vector's mean over all sites that belongs to a weight."""
    return f"mean/{local.means.index(name)}/{weight}"


def mean_in(sent: Arrays, local: Local, name: str) -> Arrays:
    """The mean of a vector over all sites, by weight, among the arrays of a message."""
    start = mean_name(local, name, "")
    return {n.removeprefix(start): value for n, value in sent.items() if n.startswith(start)}


def _read(path: Path, federation: str, in_mean: bool) -> dict[int, Vectors]:
    """Read what `save` wrote, by round, or raise InputError."""
    try:
        with files.open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            magic, digest = file.read(len(MAGIC)), file.read(32)
            if magic != MAGIC or hashlib.file_digest(file, "sha256").digest() != digest:
                raise ValueError("its checksum is wrong")
            file.seek(len(MAGIC) + 32)
            arrays, meta = array_files.unpack(file, size - len(MAGIC) - 32)
        if meta["federation"] != federation:
            raise ValueError("it is of another federation")
        return {
            int(meta[moment]): {
                str(name): {
                    key.removeprefix(f"{moment}/{i}/"): value
                    for key, value in arrays.items()
                    if key.startswith(f"{moment}/{i}/")
                }
                for i, name in enumerate(meta["names"])
            }
            for moment in ("before", "after")
        }
    except (*array_files.READ_ERRORS, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"the kept vectors of this site are damaged ({reason}): {_remedy(path, in_mean)}"
        ) from error


def _remedy(path: Path, in_mean: bool) -> str:
    if in_mean:
        return f"restore {path}, or let this site join under another name, as a new one"
    return f"restore {path}, or delete it: then they start anew"
