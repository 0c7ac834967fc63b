"""Servers that are not what they say, to see what clients give them: small, real, and on a port of this machine."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

#: Ways to write 127.0.0.1 that a resolver understands and no rule should: to a client they are names like any other, so
#: that what lies behind them is as far away as any other host.
AWAY, ELSEWHERE = "127.1", "127.0.1"

_SSL, _PLUGIN_AUTH = 1 << 11, 1 << 19
_CAPABILITIES = 0x1FF_FFFF & ~_SSL & ~(1 << 5)  # all of them but TLS and compression
_OK = b"\0\0\0\2\0\0\0"
_SALT = bytes(range(65, 85))


# ---------------------------------------------------------------- certificates


@dataclass(frozen=True)
class Certificate:
    """Files of a server, and of the authority that signed its certificate."""

    ca: Path
    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def certify(folder: Path, *names: str) -> Certificate:
    """Make an authority and a certificate for names and addresses.

    :param folder: is made; holds ``ca.pem``, ``cert.pem`` and ``key.pem``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"authority {os.urandom(4).hex()}")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    now = datetime.datetime.now(datetime.UTC)
    for name, holder, key in (("ca", issuer, keys[0]), ("cert", subject, keys[1])):
        made = (
            x509.CertificateBuilder()
            .subject_name(holder)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        )
        if name == "cert" and names:
            made = made.add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
        pem = made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.pem").write_bytes(pem)
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(_pem(keys[1]))
    return Certificate(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


def _name(text: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


# ---------------------------------------------------------------- what they have in common


@dataclass
class Rogue:
    """A server that takes all connections and remembers what it was sent; a context manager.

    :param certificate: offers TLS with it.
    :ivar sent: what clients have sent, without the packets that only ask for TLS.
    :ivar in_tls: how many connections came to have TLS.
    """

    certificate: Certificate | None = None
    sent: list[bytes] = field(default_factory=list)
    connections: int = 0
    in_tls: int = 0

    def __enter__(self) -> Any:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(5)
                self.connections += 1
                with contextlib.suppress(OSError, EOFError, struct.error), client:
                    self.talk(client)

    def talk(self, client: socket.socket) -> None:
        """One connection, from its beginning."""
        raise NotImplementedError

    def secure(self, client: socket.socket) -> socket.socket:
        """Go over to TLS."""
        assert self.certificate is not None
        secured = self.certificate.context().wrap_socket(client, server_side=True)
        self.in_tls += 1
        return secured

    def learned(self, password: str) -> bool:
        """Whether a client has given the password away: as it is, or encrypted for this server's key."""
        plain = password.encode()
        return any(plain in sent or plain in _decrypted(sent) for sent in self.sent)


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := client.recv(size - len(data))):
            raise EOFError
        data += more
    return data


def _decrypted(sent: bytes) -> bytes:
    """What the second half of an exchange by public key says: the password, mixed with the salt."""
    with contextlib.suppress(ValueError):
        how = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
        mixed = _RSA.decrypt(sent, how)
        return bytes(byte ^ _SALT[i % len(_SALT)] for i, byte in enumerate(mixed))
    return b""


# ---------------------------------------------------------------- MySQL


@dataclass
class RogueMySQL(Rogue):
    """Asks for the password in one way or another, and says yes to whatever comes.

    :param greets: authentication plugin that its greeting names.
    :param switch: plugin that it asks for then.
    :param full: asks for the full exchange of caching_sha2_password, and answers with its public key if that is wanted.
    :param file: answers every statement with the wish for this file.
    """

    greets: str = "caching_sha2_password"
    switch: str = ""
    full: bool = False
    file: str = ""

    def talk(self, client: socket.socket) -> None:
        """See :class:`Rogue`."""
        self._next, tls = 0, _SSL if self.certificate else 0
        capabilities = _CAPABILITIES | tls
        greeting = b"\x0a9.7.0\0" + struct.pack("<I", 7) + _SALT[:8] + b"\0" + struct.pack("<H", capabilities & 0xFFFF)
        greeting += struct.pack("<BHHB", 255, 2, capabilities >> 16, 21) + b"\0" * 10 + _SALT[8:] + b"\0"
        self._say(client, greeting + self.greets.encode() + b"\0")
        response = self._hear(client)
        if len(response) == 32 and tls:
            client = self.secure(client)
            response = self._hear(client)
        self.sent.append(response)
        if self.switch:
            prompt = b"\4Password: " if self.switch == "dialog" else _SALT + b"\0"
            self._say(client, b"\xfe" + self.switch.encode() + b"\0" + prompt)
            self._listen(client)
        if self.full:
            self._say(client, b"\1\4")
            self._listen(client)
        if self.greets == "sha256_password" and not isinstance(client, ssl.SSLSocket):
            self._give_key(client)
        self._say(client, _OK)
        while self.file:
            self._next = 0
            self.sent.append(self._hear(client))
            # What belongs to the session is let pass: the wish comes with the first statement that has an answer.
            setting = self.sent[-1][:4].upper() in (b"\3SET", b"\3COM")
            self._say(client, _OK if setting else b"\xfb" + self.file.encode())
            if not setting:
                while True:
                    self.sent.append(self._hear(client))

    def _listen(self, client: socket.socket) -> None:
        """The answer to a request of the authentication, and our public key where that is the answer."""
        self.sent.append(self._hear(client))
        if self.sent[-1] in (b"\1", b"\2"):
            self._give_key(client)

    def _give_key(self, client: socket.socket) -> None:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self._say(client, b"\1" + _RSA.public_key().public_bytes(serialization.Encoding.PEM, form))
        self.sent.append(self._hear(client))

    def _say(self, client: socket.socket, data: bytes) -> None:
        client.sendall(struct.pack("<I", len(data))[:3] + bytes([self._next % 256]) + data)
        self._next += 1

    def _hear(self, client: socket.socket) -> bytes:
        head = _exactly(client, 4)
        self._next = head[3] + 1
        return _exactly(client, int.from_bytes(head[:3], "little"))


# ---------------------------------------------------------------- PostgreSQL


@dataclass
class RoguePostgres(Rogue):
    """Asks for the password in clear text, or hashed with MD5.

    :param md5: the second.
    """

    md5: bool = False

    def talk(self, client: socket.socket) -> None:
        """See :class:`Rogue`."""
        while True:
            size, code = struct.unpack(">II", _exactly(client, 8))
            rest = _exactly(client, size - 8)
            if code == 80877103 and self.certificate is not None:
                client.sendall(b"S")
                client = self.secure(client)
            elif code in (80877103, 80877104):  # TLS, GSS
                client.sendall(b"N")
            else:
                self.sent.append(rest)
                break
        client.sendall(b"R" + struct.pack(">II", 12, 5) + b"salt" if self.md5 else b"R" + struct.pack(">II", 8, 3))
        size = struct.unpack(">xI", _exactly(client, 5))[0]
        self.sent.append(_exactly(client, size - 4))

    def learned_hash(self, user: str, password: str) -> bool:
        """Whether a client has answered with the hash."""
        inner = hashlib.md5(f"{password}{user}".encode()).hexdigest()
        return any(hashlib.md5(f"{inner}salt".encode()).hexdigest().encode() in sent for sent in self.sent)
