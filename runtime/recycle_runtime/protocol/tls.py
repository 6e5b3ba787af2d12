"""Connections that nobody else can read: TLS 1.3, on request. No torch.

The one that listens has a certificate, made when it starts and signed by nobody. Whoever connects takes any,
and puts the digest of the one that it was shown into its proof of the token (see `framing`). So somebody in
between, who has to show another certificate, is found out, and nobody needs to hand out certificates.

A tunnel turns what is said into what travels, and back; sending and receiving is for others to do. So one
thread may wait for bytes while another sends some, and whatever carries bytes can carry a tunnel.
"""

import hashlib
import shutil
import ssl
import subprocess
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from recycle_runtime.files import reason
from recycle_runtime.protocol.codec import ProtocolError

_OPENSSL: Final = "openssl"
_OPENSSL_SECONDS: Final = 60.0
_DAYS: Final = 36500
"""Nobody looks at them: a certificate is as old as its process."""
_MOST_BEFORE_PROOF: Final = 1 << 16
"""Bytes that are read before both ends have agreed on keys."""
_READ_BYTES: Final = 1 << 16


class CertificateError(ValueError):
    """There is none, and a sentence says why."""


class Certificate:
    """Of the one that listens."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """CertificateError if the files hold none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nobody comes back to an old session.
        context.num_tickets = 0
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")
            text = certificate.read_text(encoding="ascii")
        except ssl.SSLError as error:
            why = error.reason or "they are no certificate and key in PEM format"
            raise CertificateError(f"{certificate} and {key}: {why}") from None
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else "not in PEM format"
            raise CertificateError(f"{certificate} and {key}: {why}") from None
        self._context = context
        self._digest = _digest(ssl.PEM_cert_to_DER_cert(_first(text)))

    def tunnel(self) -> "Tunnel":
        """For one client."""
        return Tunnel(self._context, self._digest)


def make_certificate(openssl: str = _OPENSSL) -> Certificate:
    """A new one, whose key is in no file once this returns; CertificateError without the command for it."""
    command = shutil.which(openssl)
    if command is None:
        raise CertificateError(
            f"--tls makes a certificate with the command {openssl}, which is not here: install it, or give "
            "--tls-certificate FILE and --tls-key FILE"
        )
    # A folder for this user alone.
    with TemporaryDirectory(prefix="recycle-tls-") as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        words = [command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        words += ["-nodes", "-days", str(_DAYS), "-subj", "/CN=recycle"]
        words += ["-keyout", str(key), "-out", str(certificate)]
        try:
            made = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_OPENSSL_SECONDS,
                umask=0o077,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CertificateError(f"{command} makes no certificate: {error}") from None
        if made.returncode != 0:
            said = (made.stderr.strip().splitlines() or [f"status {made.returncode}"])[-1]
            raise CertificateError(f"{command} makes no certificate: {said}")
        return Certificate(certificate, key)


class Tunnel:
    """One end of an encrypted connection. Several threads may use it."""

    def __init__(self, context: ssl.SSLContext, digest: str | None = None) -> None:
        """The digest is that of the own certificate, at the end that has one."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=digest is not None)
        self._digest = digest
        self._heard = 0
        self._lock = threading.Lock()
        """Lock of the TLS state; senders hold another, since encrypted data travels in this order."""
        self.is_ready = False
        """True if both ends have keys."""

    @property
    def binding(self) -> str:
        """The digest of the certificate of the end that listens, once both ends have keys."""
        if self._digest is None:
            shown = self._ssl.getpeercert(binary_form=True)
            assert shown is not None
            self._digest = _digest(shown)
        return self._digest

    def begin(self) -> bytes:
        """Data to send first: none at the end that listens."""
        with self._lock:
            self._agree()
            return self._outgoing.read()

    def owed(self) -> bytes:
        """Data that has to be sent because of data that has arrived."""
        with self._lock:
            return self._outgoing.read()

    def hear(self, data: bytes) -> bytes:
        """Decrypt data that has arrived; ProtocolError if it is no TLS."""
        with self._lock:
            self._incoming.write(data)
            if not self.is_ready:
                self._heard += len(data)
                if self._heard > _MOST_BEFORE_PROOF:
                    raise ProtocolError("too many bytes before there are keys")
                self._agree()
            return self._read() if self.is_ready else b""

    def say(self, data: bytes | bytearray | memoryview) -> bytes:
        """Encrypt data; the results are to be sent in this order."""
        with self._lock:
            self._ssl.write(data)
            return self._outgoing.read()

    def _agree(self) -> None:
        try:
            self._ssl.do_handshake()
            self.is_ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise _unreadable(error) from None

    def _read(self) -> bytes:
        found: list[bytes] = []
        try:
            while part := self._ssl.read(_READ_BYTES):
                found.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise _unreadable(error) from None
        return b"".join(found)


def client_tunnel() -> Tunnel:
    """Of the one that connects: any certificate will do, since the proof of the token covers it."""
    return Tunnel(_client_context())


@cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _unreadable(error: ssl.SSLError) -> ProtocolError:
    return ProtocolError(f"it does not speak TLS as it should: {error.reason or 'the connection was ended'}")


def _first(text: str) -> str:
    """Of the certificates in a file, the one that is shown."""
    end = "-----END CERTIFICATE-----"
    before, found, _ = text.partition(end)
    _, begin, body = before.rpartition("-----BEGIN CERTIFICATE-----")
    return f"{begin}{body}{found}\n"


def _digest(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
