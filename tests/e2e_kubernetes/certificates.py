"""One certificate authority for the whole control plane, made with the openssl command."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import openssl

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Issues certificates into a directory."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def issue(self, name: str, subject: str, *addresses: str) -> Pair:
        """A certificate for a subject such as /O=group/CN=user, and for addresses such as IP:127.0.0.1."""
        key, request, extensions, certificate = (
            self.directory / f"{name}.{kind}" for kind in ("key", "csr", "ext", "pem")
        )
        usage = "extendedKeyUsage=serverAuth,clientAuth\n"
        extensions.write_text(usage + (f"subjectAltName={','.join(addresses)}\n" if addresses else ""))
        openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", subject)
        signer = ("-CA", self.ca, "-CAkey", self.directory / "ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-days", 2, "-out", certificate)
        return Pair(certificate, key)

    def signing_key(self, name: str) -> Path:
        """A bare key, with which the API server signs tokens of service accounts."""
        key = self.directory / f"{name}.key"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        return key


def authority(directory: Path) -> Authority:
    """A new one."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Authority(directory)
    openssl(
        *("req", "-x509", *_NEW_KEY, "-keyout", directory / "ca.key", "-out", made.ca, "-subj", "/CN=e2e", "-days", 2),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
    )
    return made
