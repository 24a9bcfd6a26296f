"""The programs of Kubernetes, built from Go modules once and kept in the cache.

They are tool dependencies of small modules below ``go/``, pinned by their go.sum; nothing of their source is here.
Three modules and not one, because one module would force common versions of their dependencies.
"""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from e2e.cluster.commands import Progress, kubectl, say
from e2e.cluster.paths import HERE, cache_root, locked

KUBERNETES_VERSION = "v1.37.2"
# Without these the API server calls itself v0.0.0 and clients refuse features.
KUBERNETES_FLAGS = (
    f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION} "
    f"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 "
    f"-X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"
)


@dataclass(frozen=True)
class Module:
    """A Go module and the commands built from it: what each is called, and its package."""

    folder: Path
    commands: dict[str, str]
    ldflags: str = ""
    sources: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        """Hash of all that decides what the build makes."""
        digest = hashlib.sha256(self.ldflags.encode())
        for name in ("go.mod", "go.sum", *self.sources):
            if (path := self.folder / name).exists():
                digest.update(name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


def _modules() -> tuple[Module, ...]:
    kubernetes = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    containerd = ("containerd", "containerd-shim-runc-v2", "ctr")
    plugins = {"bridge": "main", "loopback": "main", "host-local": "ipam", "portmap": "meta"}
    fixtures = ("pause", "probe")
    go = HERE / "go"
    return (
        Module(go / "etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
        Module(
            go / "node",
            {name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in containerd}
            | {name: f"github.com/containernetworking/plugins/plugins/{kind}/{name}" for name, kind in plugins.items()},
        ),
        Module(go / "kubernetes", {name: f"k8s.io/kubernetes/cmd/{name}" for name in kubernetes}, KUBERNETES_FLAGS),
        Module(
            go / "fixtures",
            {name: f"./cmd/{name}" for name in fixtures},
            sources=tuple(f"cmd/{name}/main.go" for name in fixtures),
        ),
    )


def ensure_binaries(progress: Progress = say) -> Path:
    """Build what is missing and return a folder with every program: kube-apiserver, etcd, kubectl, ctr, …

    From nothing this takes about twenty minutes on two cores; each program built is kept, also when a later one fails.
    Raises SystemExit when Go is not installed, RuntimeError with the compiler's words when a build fails.
    """
    modules = _modules()
    folder = cache_root() / "bin" / hashlib.sha256("".join(m.key for m in modules).encode()).hexdigest()[:16]
    wanted = [(module, name) for module in modules for name in module.commands]
    if all((folder / name).exists() for _, name in wanted) and (folder / "kubectl").exists():
        return folder
    with locked(cache_root() / "locks/binaries"):
        folder.mkdir(parents=True, exist_ok=True)
        for number, (module, name) in enumerate(wanted, 1):
            _ensure_command(module, name, folder / name, progress, f"[{number}/{len(wanted)}]")
        _link(kubectl().resolve(), folder / "kubectl")
    return folder


def _ensure_command(module: Module, name: str, target: Path, progress: Progress, place: str) -> None:
    # Kept by the module's own key, so that a change of one module does not rebuild the others.
    kept = cache_root() / "bin" / f"{module.folder.name}-{module.key}" / name
    if not kept.exists():
        began = monotonic()
        progress(f"{place} building {name} (go build {module.commands[name]})")
        _build(module, name, kept)
        progress(f"{place} built {name} in {monotonic() - began:.0f} s")
    _link(kept, target)


def _build(module: Module, name: str, target: Path) -> None:
    if not shutil.which("go"):
        raise SystemExit("go: not found; install Go 1.26 or later (https://go.dev/dl), the cluster is built with it")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{name}.new")
    done = subprocess.run(
        ["go", "build", "-trimpath", "-ldflags", f"-s -w {module.ldflags}", "-o", fresh, module.commands[name]],
        cwd=module.folder,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"go build {module.commands[name]} in {module.folder}: {done.stderr.strip()[-3000:]}")
    fresh.replace(target)


def _link(source: Path, target: Path) -> None:
    if not target.exists():
        target.unlink(missing_ok=True)
        target.symlink_to(source)
