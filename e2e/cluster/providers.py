"""Three kinds of cluster behind one interface: the local one, kind where Docker runs, and one that exists already."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Protocol

from e2e.cluster import images, local, volumes
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import Progress, kubectl, run, succeeds
from e2e.cluster.layout import find
from e2e.cluster.paths import HERE, REPOSITORY, state_root, write_atomically


class Provider(Protocol):
    """What the verbs and the demo need of a cluster, whatever makes it."""

    def up(self, progress: Progress) -> Path:
        """Bring it up or repair it; returns its kubeconfig."""

    def down(self, progress: Progress) -> None:
        """Remove it; an existing cluster is left as it is."""

    def kubeconfig(self) -> Path:
        """Raises SystemExit when the cluster is not up."""

    def load(self, shorts: Sequence[str], progress: Progress) -> None:
        """Build these images of the product and give them to every node."""


def choose(name: str) -> Provider:
    """The cluster to use: CONTEXT names an existing one, else kind if it and Docker are usable, else the local one.

    A cluster of that name that runs locally is used whatever else is there. Whatever context is current is never used.
    """
    if context := os.environ.get("CONTEXT"):
        return ExistingCluster(context)
    if find(name) is None and shutil.which("kind") and shutil.which("docker") and succeeds(["docker", "info"]):
        return KindCluster(name)
    return LocalCluster(name)


@dataclass(frozen=True)
class LocalCluster:
    """Processes of this machine; see ``local``."""

    name: str

    def up(self, progress: Progress) -> Path:
        return local.up(self.name, progress).kubeconfig

    def down(self, progress: Progress) -> None:
        local.down(self.name, progress)

    def kubeconfig(self) -> Path:
        return local.existing(self.name).kubeconfig

    def load(self, shorts: Sequence[str], progress: Progress) -> None:
        cluster = local.existing(self.name)
        binaries = ensure_binaries(progress)
        for short in shorts or [*images.FIXTURES, *images.buildable()]:
            fixture = short in images.FIXTURES
            image = images.fixture_image(short, binaries) if fixture else images.build(short, progress)
            made = images.load_into(list(cluster.nodes), [image], binaries)
            progress(f"{image.name}: {f'imported on {len(made)} nodes' if made else 'is there already'}")


@dataclass(frozen=True)
class KindCluster:
    """Kubernetes in Docker: the same node settings, volumes and image names as the local cluster."""

    name: str

    @property
    def folder(self) -> Path:
        return state_root() / f"kind-{self.name}"

    def up(self, progress: Progress) -> Path:
        kubeconfig = self.folder / "kubeconfig"
        if self.name not in run(["kind", "get", "clusters"]).split():
            progress(f"creating kind cluster {self.name}")
            config = Template((HERE / "templates/kind.yaml").read_text()).substitute(folder=self.folder, here=HERE)
            write_atomically(self.folder / "kind.yaml", config)
            (self.folder / "audit").mkdir(exist_ok=True)
            create = [
                "create",
                "cluster",
                "--name",
                self.name,
                "--config",
                str(self.folder / "kind.yaml"),
                "--wait",
                "120s",
            ]
            run(["kind", *create, "--kubeconfig", kubeconfig])
        write_atomically(kubeconfig, run(["kind", "get", "kubeconfig", "--name", self.name]), 0o600)
        workers = [f"{self.name}-worker", f"{self.name}-worker2"]
        apply = ["apply", "--server-side", "-f", "-"]
        manifests = volumes.manifests(self.folder / "shared", workers)
        run([str(kubectl()), "--kubeconfig", str(kubeconfig), *apply], stdin=manifests)
        return kubeconfig

    def down(self, progress: Progress) -> None:
        run(["kind", "delete", "cluster", "--name", self.name])
        shutil.rmtree(self.folder, ignore_errors=True)
        progress(f"kind cluster {self.name} is deleted")

    def kubeconfig(self) -> Path:
        return _existing_file(self.folder / "kubeconfig", f"kind cluster {self.name} is not up")

    def load(self, shorts: Sequence[str], progress: Progress) -> None:
        for short in shorts or images.buildable():
            if short in images.FIXTURES:
                raise SystemExit(f"{short}: fixtures are for the local cluster's own tests")
            progress(f"building {images.image_name(short)}")
            dockerfile = REPOSITORY / "images" / short / "Dockerfile"
            run(["docker", "build", "--tag", images.image_name(short), "--file", dockerfile, REPOSITORY])
            run(["kind", "load", "docker-image", "--name", self.name, images.image_name(short)])


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster that somebody else runs, used only when its context is named."""

    context: str

    @property
    def file(self) -> Path:
        return state_root() / f"context-{self.context.replace('/', '_')}.kubeconfig"

    def up(self, progress: Progress) -> Path:
        """Write a kubeconfig that knows this context alone, so that nothing can go to another cluster."""
        view = ["config", "view", "--minify", "--flatten", "--context", self.context]
        write_atomically(self.file, run([kubectl(), *view]), 0o600)
        run([kubectl(), "--kubeconfig", self.file, "config", "use-context", self.context])
        progress(f"using the existing cluster of context {self.context}")
        return self.file

    def down(self, progress: Progress) -> None:
        self.file.unlink(missing_ok=True)
        progress(f"the cluster of context {self.context} is left as it is")

    def kubeconfig(self) -> Path:
        return _existing_file(self.file, f"context {self.context} is not set up")

    def load(self, shorts: Sequence[str], progress: Progress) -> None:
        raise SystemExit(
            f"context {self.context}: images of an existing cluster come from a registry; "
            "push them there and name them in the manifests"
        )


def _existing_file(path: Path, otherwise: str) -> Path:
    if not path.exists():
        raise SystemExit(f"{otherwise}: python -m e2e.cluster up")
    return path
