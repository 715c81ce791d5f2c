"""Certificates for TLS tests, made with the openssl command."""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import missing

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A certificate authority of its own in a directory."""

    directory: Path
    name: str = "ca"

    @property
    def ca_file(self) -> Path:
        return self.directory / f"{self.name}.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and `name`.test, and its key."""
        key, request, extensions, certificate = (
            self.directory / f"{name}.{kind}" for kind in ("key", "csr", "ext", "pem")
        )
        extensions.write_text(f"subjectAltName=IP:127.0.0.1,DNS:{name}.test\n")
        openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.ca_file, "-CAkey", self.directory / f"{self.name}.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-days", 2, "-out", certificate)
        return certificate, key


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


def authority(directory: Path, name: str = "ca") -> Authority:
    """A new authority; skips the test where there is no openssl command, and fails it in CI."""
    if shutil.which("openssl") is None:
        missing("the openssl command is not installed")
    made = Authority(directory, name)
    key = directory / f"{name}.key"
    openssl("req", "-x509", *_NEW_KEY, "-keyout", key, "-out", made.ca_file, "-subj", f"/CN={name}", "-days", 2)
    return made


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A server's context; with `client_ca` it demands a client certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
