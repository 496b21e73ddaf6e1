"""Keys and certificates, made on the host where they stay. Needs `cryptography`, as flwr does."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from fedmaba.deploy.flower_app import private
from fedmaba.deploy.site_names import key_fingerprint
from fedmaba.errors import InputError
from fedmaba.results import files

CA_DAYS, SERVER_DAYS = 3650, 365
ALWAYS = ("localhost", "127.0.0.1")  # the server reaches itself so


def new_authority(folder: Path) -> None:
    """Make ca.key and ca.pem: sites trust who has a certificate of this authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name("federation CA")
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        _certificate(name, name, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(public, critical=False)
        .sign(key, hashes.SHA384())
    )
    private.write_new(folder / "ca.key", _pem(key))
    private.write_new(folder / "ca.pem", _text(made))


def new_certificate(folder: Path, host: str, days: int = SERVER_DAYS) -> None:
    """Make server.key and server.pem, signed by the authority of this folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    try:
        signer: Any = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no key"
        raise InputError(f"{folder / 'ca.key'}: {why}: bring the key of the authority back") from (
            error
        )
    key = _new_key()
    names = x509.SubjectAlternativeName([_alternative(n) for n in dict.fromkeys((host, *ALWAYS))])
    server = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _certificate(_name(host[:64]), authority.subject, key, days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(server, critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA384())
    )
    files.write(folder / "server.key", _pem(key).encode(), private=True)
    files.write(folder / "server.pem", _text(made).encode(), private=True)


def days_left(certificate: Path) -> float:
    """For how many days a certificate is valid from now on."""
    from cryptography import x509

    try:
        end = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no certificate"
        raise InputError(f"{certificate}: {why}: restore it, or make it anew") from error
    left: datetime.timedelta = end - datetime.datetime.now(datetime.UTC)
    return left.total_seconds() / 86400


def new_site_key(path: Path, comment: str = "") -> str:
    """Make a site's private key and, beside it, the line of its public one, which is returned."""
    from cryptography.hazmat.primitives import serialization

    key = _new_key()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    line = f"{key.public_key().public_bytes(*form).decode()} {comment}".strip()
    private.write_new(path, secret.decode())
    private.write_new(path.with_name(f"{path.name}.pub"), f"{line}\n")
    return line


def fingerprint(line: str) -> str:
    """The fingerprint of the line of a public key, as `ssh-keygen -lf` prints it."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        key: Any = serialization.load_ssh_public_key(line.encode())
    except ValueError as error:
        raise InputError(
            f"{line[:60]!r} is no public key: give the line that `fedmaba flower join` printed"
        ) from error
    return key_fingerprint(key.public_bytes(*form))


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _certificate(subject: Any, issuer: Any, key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*names: str) -> Any:
    from cryptography import x509

    every = "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
    known = [*every.split(), "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in names for name in known})


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return str(key.private_bytes(*form, serialization.NoEncryption()).decode())


def _text(certificate: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    return str(certificate.public_bytes(serialization.Encoding.PEM).decode())
