"""The programs of a run: those built once through the Go module proxy into .tools, and packaged ones."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOLS = ROOT / ".tools"
KUBELET = "e2e-kubelet"
VERSION = "v1.35.1"
"""Of Kubernetes; apiserver/go.mod names it too."""

DEBIAN = {
    "etcd": "etcd-server",
    "openssl": "openssl",
    "ip": "iproute2",
    "kubectl": "kubernetes-client",
    "unshare": "util-linux",
}
"""Program: package that brings it."""


class MissingError(Exception):
    """Something that a run needs is not there; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are; `kubectls` are that on PATH, and that in .tools where there is another."""

    etcd: str
    apiserver: str
    kubelet: str
    helm: str
    kubectls: tuple[str, ...]


def find() -> Programs:
    """Every program. Raises MissingError."""
    missing = [package for program, package in DEBIAN.items() if shutil.which(program) is None]
    if missing:
        raise MissingError(
            f"not installed: {', '.join(missing)}; apt-get install them, or make e2e-kubernetes as root does"
        )
    helm = TOOLS / "helm"
    found = str(helm) if helm.exists() else shutil.which("helm")
    if found is None:
        raise MissingError("there is no helm: make tools-helm builds it")
    apiserver = TOOLS / "kube-apiserver"
    if not is_built(apiserver):
        raise MissingError("there is no kube-apiserver: make tools-kubernetes builds it")
    kubectls = [shutil.which("kubectl"), shutil.which(str(TOOLS / "kubectl"))]
    etcd = shutil.which("etcd") or "etcd"
    return Programs(etcd, str(apiserver), str(TOOLS / KUBELET), found, tuple(filter(None, kubectls)))


def is_built(apiserver: Path) -> bool:
    """Whether the files are there, and of the version wanted."""
    if not apiserver.exists() or not apiserver.with_name(KUBELET).exists():
        return False
    out = subprocess.run((apiserver, "--version"), capture_output=True, text=True, check=False).stdout
    return out.split()[-1:] == [VERSION]


def build(say: Callable[[str], None]) -> None:
    """Build kube-apiserver and the kubelet's port unless they are there.

    Raises CalledProcessError, and MissingError without Go.
    """
    wanted = TOOLS / "kube-apiserver"
    if is_built(wanted):
        return
    if shutil.which("go") is None:
        raise MissingError("kube-apiserver has to be built and there is no go (1.25 or newer)")
    say(f"building kube-apiserver {VERSION} into .tools (five minutes on two cores, only the first time)")
    TOOLS.mkdir(exist_ok=True)
    _, minor, _ = VERSION.split(".")
    stamp = {"gitVersion": VERSION, "gitMajor": "1", "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items())
    partial = wanted.with_suffix(".part")
    command = ("go", "build", "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(partial))
    environment = {**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    subprocess.run(
        (*command, "k8s.io/kubernetes/cmd/kube-apiserver"), check=True, cwd=HERE / "apiserver", env=environment
    )
    kubelet = ("go", "build", "-p", "2", "-trimpath", "-buildvcs=false", "-o", str(TOOLS / KUBELET), "./kubelet")
    subprocess.run(kubelet, check=True, cwd=HERE / "apiserver", env=environment)
    partial.rename(wanted)
