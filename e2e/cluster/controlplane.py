"""etcd, API server, controller-manager and scheduler: processes on the machine, reached at the bridge's address."""

from pathlib import Path

from e2e.cluster import daemons
from e2e.cluster.commands import run, succeeds, wait_until
from e2e.cluster.layout import Layout
from e2e.cluster.paths import HERE

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def start_api_server(cluster: Layout, binaries: Path, pki: Path) -> None:
    """Start etcd and the API server, if they do not run; returns before they are ready."""
    daemons.start(cluster, "etcd", [binaries / "etcd", *_etcd_flags(cluster)])
    daemons.start(cluster, "kube-apiserver", [binaries / "kube-apiserver", *_api_server_flags(cluster, pki)])


def wait_for_api_server(cluster: Layout, binaries: Path) -> None:
    """Return when the API server says that it is ready.

    Raises RuntimeError with the end of its log when it has ended, TimeoutError after a minute.
    """
    ask = kubectl(cluster, binaries, "get", "--raw", "/readyz")

    def ready() -> bool:
        for name in NAMES[:2]:
            if daemons.running(cluster, name) is None:
                raise RuntimeError(f"{name} ended at once: {daemons.last_words(cluster, name)}")
        return succeeds(ask)

    wait_until(f"API server of cluster {cluster.name} to be ready", ready, 60)


def start_controllers(cluster: Layout, binaries: Path, pki: Path) -> None:
    """Start controller-manager and scheduler, if they do not run."""
    manager: list[str | Path] = [binaries / "kube-controller-manager", *_controller_manager_flags(cluster, pki)]
    daemons.start(cluster, "kube-controller-manager", manager)
    daemons.start(cluster, "kube-scheduler", [binaries / "kube-scheduler", *_scheduler_flags(cluster, pki)])


def apply(cluster: Layout, binaries: Path, manifests: str) -> None:
    """Apply objects under the cluster's own field manager."""
    arguments = ["apply", "--server-side", "--force-conflicts", "--field-manager=local-cluster", "-f", "-"]
    run(kubectl(cluster, binaries, *arguments), stdin=manifests)


def kubectl(cluster: Layout, binaries: Path, *arguments: str) -> list[str]:
    """The command line that asks the cluster's API server as its administrator."""
    return [str(binaries / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *arguments]


def _etcd_flags(cluster: Layout) -> list[str]:
    return [
        f"--data-dir={cluster.folder}/etcd",
        f"--listen-client-urls={cluster.etcd_client}",
        f"--advertise-client-urls={cluster.etcd_client}",
        f"--listen-peer-urls={cluster.etcd_peer}",
        f"--initial-advertise-peer-urls={cluster.etcd_peer}",
        f"--initial-cluster=default={cluster.etcd_peer}",
        # Nothing here has to survive a power cut, and a shared disk syncs slowly.
        "--unsafe-no-fsync",
    ]


def _api_server_flags(cluster: Layout, pki: Path) -> list[str]:
    return [
        f"--etcd-servers={cluster.etcd_client}",
        f"--advertise-address={cluster.host_address}",
        f"--bind-address={cluster.host_address}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={cluster.service_range}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        # Nobody resolves node names here; without this `kubectl logs` fails.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        f"--audit-policy-file={HERE}/templates/audit-policy.yaml",
        f"--audit-log-path={cluster.audit_log}",
        "--audit-log-maxsize=500",
        "--audit-log-maxbackup=1",
    ]


def _controller_manager_flags(cluster: Layout, pki: Path) -> list[str]:
    return [
        f"--kubeconfig={pki}/controller-manager.conf",
        f"--bind-address={cluster.host_address}",
        "--leader-elect=false",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        # Each node's pod range follows from its number.
        "--allocate-node-cidrs=false",
    ]


def _scheduler_flags(cluster: Layout, pki: Path) -> list[str]:
    return [f"--kubeconfig={pki}/scheduler.conf", f"--bind-address={cluster.host_address}", "--leader-elect=false"]
