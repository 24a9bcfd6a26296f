"""A real API server for a test session: etcd and kube-apiserver on loopback, in a folder that goes with them."""

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import succeeds

CRDS = Path(__file__).parent.parent / "crds"
_READY_WITHIN_S = 120


@pytest.fixture(scope="session")
def apiserver() -> Iterator[Path]:
    """Path of an administrator's kubeconfig. The CRDs are installed; there are no controllers and no nodes."""
    binaries = ensure_binaries()
    with tempfile.TemporaryDirectory(prefix="gpulet-apiserver-") as name, ExitStack() as stack:
        folder = Path(name)
        etcd, peer, port = _free_ports(3)
        stack.enter_context(_running([binaries / "etcd", *_etcd_flags(folder, etcd, peer)], folder / "etcd.log"))
        token = secrets.token_hex(16)
        flags = _api_server_flags(folder, etcd, port, token)
        server = stack.enter_context(_running([binaries / "kube-apiserver", *flags], folder / "apiserver.log"))
        kubeconfig = _kubeconfig(folder, port, token)
        kubectl = [str(binaries / "kubectl"), "--kubeconfig", str(kubeconfig)]
        _wait_ready(server, kubectl, folder / "apiserver.log")
        subprocess.run([*kubectl, "apply", "--server-side", "-k", CRDS], check=True, capture_output=True)
        wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]
        subprocess.run([*kubectl, *wait], check=True, capture_output=True)
        yield kubeconfig


@contextmanager
def _running(argv: Sequence[str | Path], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The kernel ends the program when we end, however we end."""
    with log.open("wb") as output:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *argv], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_ready(server: "subprocess.Popen[bytes]", kubectl: list[str], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while not succeeds([*kubectl, "get", "--raw", "/readyz"]):
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the API server is not ready: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.5)


def _etcd_flags(folder: Path, port: int, peer: int) -> list[str]:
    client_url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return [
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
    ]


def _api_server_flags(folder: Path, etcd: int, port: int, token: str) -> list[str]:
    key = folder / "sa.key"
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        # It makes its own certificate there.
        f"--cert-dir={folder}",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        # A loopback address may be no endpoint of the Service kubernetes.
        "--endpoint-reconciler-type=none",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/24",
        # A controller would make each namespace's account; here is none.
        "--disable-admission-plugins=ServiceAccount",
    ]


def _kubeconfig(folder: Path, port: int, token: str) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": f"{folder}/apiserver.crt"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
