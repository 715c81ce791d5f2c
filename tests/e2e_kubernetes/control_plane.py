"""etcd and kube-apiserver as processes of this network namespace, where every port is free."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.e2e_kubernetes.certificates import Authority, Pair
from tests.e2e_kubernetes.programs import Programs
from tests.support.processes import Process, running

NODE_IP = "10.0.0.7"
PORT = 6443
ETCD = "http://127.0.0.1:2379"
BOOT_SECONDS = 60.0


@dataclass
class ControlPlane:
    """The servers; `api` can be stopped and started again, etcd keeps what it knows."""

    programs: Programs
    folder: Path
    authority: Authority
    admin: Pair
    life: contextlib.AsyncExitStack
    starts: int = 0
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{PORT}"

    @property
    def context_of_ca(self) -> ssl.SSLContext:
        """TLS as nobody: for tokens."""
        return ssl.create_default_context(cafile=str(self.authority.ca))

    @property
    def context(self) -> ssl.SSLContext:
        """TLS as the administrator."""
        made = self.context_of_ca
        made.load_cert_chain(self.admin.certificate, self.admin.key)
        return made

    async def start(self) -> None:
        """Start the API server and wait until it is ready."""
        self.starts += 1
        log = self.folder / f"kube-apiserver-{self.starts}.log"
        self.process = await self.life.enter_async_context(running(self._command(), log))
        end = asyncio.get_running_loop().time() + BOOT_SECONDS
        async with aiohttp.ClientSession() as session:
            while not await self._ready(session):
                dead = self.process.process.returncode is not None
                if dead or asyncio.get_running_loop().time() > end:
                    raise RuntimeError(f"kube-apiserver did not come up:\n{self.process.output()[-3000:]}")
                await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """End it; etcd goes on."""
        await self.life.aclose()

    async def compact(self) -> str:
        """Make etcd forget every revision but the newest, which is given."""
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{ETCD}/v3/kv/range", json={"key": "Lw=="}) as response:
                revision = str((await response.json(content_type=None))["header"]["revision"])
            async with session.post(
                f"{ETCD}/v3/kv/compaction", json={"revision": revision, "physical": True}
            ) as response:
                response.raise_for_status()
        return revision

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/readyz", ssl=self.context) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def _command(self) -> tuple[str, ...]:
        pki = self.authority.directory
        return (
            self.programs.apiserver,
            f"--etcd-servers={ETCD}",
            "--bind-address=127.0.0.1",
            f"--advertise-address={NODE_IP}",
            f"--secure-port={PORT}",
            f"--tls-cert-file={pki}/apiserver.pem",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.pem",
            f"--kubelet-certificate-authority={pki}/ca.pem",
            f"--kubelet-client-certificate={pki}/apiserver.pem",
            f"--kubelet-client-key={pki}/apiserver.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/tokens.key",
            f"--service-account-signing-key-file={pki}/tokens.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--profiling=false",
        )


@contextlib.asynccontextmanager
async def control_plane(programs: Programs, folder: Path, authority: Authority) -> AsyncIterator[ControlPlane]:
    """Both servers, up; ended with the block."""
    authority.issue(
        "apiserver", "/O=system:masters/CN=kube-apiserver", "IP:127.0.0.1", f"IP:{NODE_IP}", "DNS:kubernetes"
    )
    authority.signing_key("tokens")
    admin = authority.issue("admin", "/O=system:masters/CN=admin")
    command = (
        *(programs.etcd, "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--listen-peer-urls", "http://127.0.0.1:2380"),
    )
    async with running(command, folder / "etcd.log"), contextlib.AsyncExitStack() as life:
        made = ControlPlane(programs, folder, authority, admin, life)
        await made.start()
        yield made


async def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Run a program to its end; gives its output. Raises RuntimeError."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=env
    )
    out, _ = await asyncio.wait_for(process.communicate(), BOOT_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{out.decode()}")
    return out.decode()
