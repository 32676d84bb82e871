"""TLS certificates of a server and keys of nodes: made here, checked before anything is started.

A server has a certificate signed by its own authority; devices get `ca.pem`, by which they know
that they are talking to that server. A node has a key pair; the server gets the public half, whose
comment states its expiry date. Private keys stay on the machine that made them.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
EXPIRES = "expires="
LOOPBACK = "127.0.0.1"


class NoServer(ValueError):
    """Our server does not answer at an address: why, in a line. Another time it may."""


class NobodyThere(NoServer):
    """Nothing answers there."""


def make_server(folder: Path, hosts: list[str], days: int, began: datetime | None = None) -> None:
    """Make an authority for one server, and the server's certificate for these names and addresses.

    The authority's own key is discarded, because it could sign a false server. Loopback is always
    among the addresses, because the server's own machine uses it.
    """
    hosts = [*hosts, *([] if LOOPBACK in hosts else [LOOPBACK])]
    _absent(folder / CA, folder / CERTIFICATE, folder / KEY)
    began = began or datetime.now(UTC)
    ends = began + timedelta(days=days)
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "LOCKS federation")])
    authority = (
        _certificate(ca_name, ca_name, ca_key.public_key(), began, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(_usage(signs=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _certificate(name, ca_name, key.public_key(), began, ends)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(ca_key, hashes.SHA384())
    )
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    (folder / CA).write_bytes(authority.public_bytes(pem))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(pem))
    _write_private(folder / KEY, key, serialization.PrivateFormat.PKCS8)


def make_node(folder: Path, name: str, days: int, began: datetime | None = None) -> None:
    """Make a node's key pair: NAME.key stays on the device, NAME.pub goes to the server."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    _absent(private, public)
    key = ec.generate_private_key(ec.SECP384R1())
    ends = (began or datetime.now(UTC)) + timedelta(days=days)
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_private(private, key, serialization.PrivateFormat.OpenSSH)
    public.write_bytes(line + f" {name} {EXPIRES}{ends:%Y-%m-%d}\n".encode())


def check_server(folder: Path) -> None:
    """Refuse a folder without a complete and valid set of server files."""
    for name in (CA, CERTIFICATE, KEY):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder / name}: no such file; expected a server's certificate: "
                f"locks federation certs {folder} --host NAME"
            )
    for name in (CA, CERTIFICATE):
        check_certificate(folder / name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"{folder / KEY}: does not match {CERTIFICATE} ({error})") from None


def check_certificate(path: Path) -> None:
    """Refuse a file that is not a certificate, or one that is not valid now."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected a certificate (ca.pem of the server)")
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path}: not a certificate") from None
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) <= last:
        raise ValueError(
            f"{path}: not valid now (from {first:%Y-%m-%d} to {last:%Y-%m-%d}); expected a new "
            "one: locks federation certs"
        )


def fingerprint(ca: Path) -> str:
    """The hash of an authority's certificate: the server that it belongs to."""
    return x509.load_pem_x509_certificate(ca.read_bytes()).fingerprint(hashes.SHA256()).hex()


def read_public_key(path: Path) -> bytes:
    """A node's public key as Flower takes it; one past its date is refused."""
    from locksfl.federation.flower import public_key_to_bytes, uses_nist_ec_curve

    line = path.read_bytes()
    try:
        key = serialization.load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path}: not a public key in OpenSSH's format") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not uses_nist_ec_curve(key):
        raise ValueError(f"{path}: expected a key on a NIST curve (locks federation certs --node)")
    words = line.decode(errors="replace").split()
    for word in words[2:]:
        if word.startswith(EXPIRES):
            _check_date(path, word.removeprefix(EXPIRES))
    return public_key_to_bytes(key)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A device's key; one that is missing, no key, or readable by other users is refused."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected this node's key (certs --node NAME)")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm, TypeError):
        raise ValueError(f"{path}: not a private key in OpenSSH's format") from None
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: other users can read it; expected chmod 600")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path}: expected a key on a NIST curve (certs --node)")
    return key


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of a server's address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address}: expected HOST:PORT of the server")
    return host.strip("[]"), int(port)


def check_connection(address: str, ca: Path, timeout: float = 5.0) -> None:
    """`NoServer` unless a server answers whose certificate verifies against `ca`."""
    host, port = host_and_port(address)
    context = ssl.create_default_context(cafile=str(ca))
    try:
        with (
            socket.create_connection((host, port), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise NoServer(
            f"{address}: its certificate does not verify against {ca} ({error.verify_message}); "
            "nothing was sent"
        ) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # a server that ends, or is crowded
        raise NobodyThere(f"{address}: no server there (the connection was cut)") from None
    except ssl.SSLError as error:
        raise NoServer(f"{address}: does not speak TLS ({error.reason})") from None
    except OSError as error:
        cause = error.strerror or error
        raise NobodyThere(f"{address}: no server there ({cause})") from None


def _check_date(path: Path, text: str) -> None:
    try:
        last = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:
        raise ValueError(f"{path}: {EXPIRES}{text}: expected a date, YYYY-MM-DD") from None
    if datetime.now(UTC) >= last:
        raise ValueError(
            f"{path}: expired on {text}; expected a new key: locks federation certs --node"
        )


def _certificate(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    began: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer, name, key, x509.random_serial_number(), began - timedelta(minutes=5), ends
    )


def _usage(signs: bool) -> x509.KeyUsage:
    seals = (False,) * 4  # content, keys, data, key agreement: only signatures are made
    return x509.KeyUsage(not signs, *seals, signs, signs, encipher_only=False, decipher_only=False)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _absent(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ValueError(f"{path}: already exists; expected a new file")


def _write_private(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
