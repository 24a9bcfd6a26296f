"""The image that the product's Dockerfiles begin with here, made from Debian packages alone.

It stands for python:3.11-slim-bookworm, which a registry would have to give.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import Progress, run, succeeds
from e2e.cluster.paths import cache_root


@dataclass(frozen=True)
class Base:
    """Recipe of the base image: Debian release and packages, and what of them is left out."""

    release: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"localhost/gpulet-base:{self.release}-{self.key}"


BASE = Base(
    "bookworm",
    # libpython3.11: Triton's Python backend starts a program linked to it. libstdc++6 and libgomp1: grpc, onnxruntime.
    # binutils: the tuner links what TVM compiles.
    (
        "python3-minimal",
        "python3-venv",
        "python3-pip",
        "libpython3.11",
        "ca-certificates",
        "libgomp1",
        "libstdc++6",
        "binutils",
    ),
    ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*"),
)


# The storage mounts its own folder and does not unmount it: this way it goes with the process, killed or not.
_OWN_MOUNTS = ("unshare", "--mount")


def buildah(*arguments: str) -> str:
    """Run buildah on the cache's own storage, so that the machine's images are left alone."""
    # A chroot is all that a build needs, and it works where a container would not.
    return run([*_program(), *arguments], env={**os.environ, "BUILDAH_ISOLATION": "chroot"})


def copy_out(name: str, target: str) -> None:
    """Copy an image out of that storage; layers that the target has are not even read.

    Uncompressed, as packing and unpacking takes longer than copying. buildah's own push packs whatever it is told.
    """
    storage = _storage()
    source = f"containers-storage:[overlay@{storage}/root+{storage}/run]{name}"
    run([*_OWN_MOUNTS, "skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target])


def _program() -> list[str | Path]:
    storage = _storage()
    return [
        *_OWN_MOUNTS,
        "buildah",
        "--storage-driver",
        "overlay",
        "--root",
        storage / "root",
        "--runroot",
        storage / "run",
    ]


def _storage() -> Path:
    return cache_root() / "buildah"


def ensure_base(progress: Progress) -> None:
    """Make the base image if the cache has none of this recipe. Takes about a minute."""
    if succeeds([*_program(), "inspect", "--type", "image", BASE.name]):
        return
    progress("making the base image from Debian packages")
    archive = cache_root() / f"base-{BASE.key}.tar"
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in BASE.left_out]
    include = f"--include={','.join(BASE.packages)}"
    run(["mmdebstrap", "--quiet", "--variant=essential", include, *left_out, BASE.release, archive])
    container = buildah("from", "scratch").strip()
    try:
        buildah("add", "--quiet", container, str(archive))
        buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        buildah("commit", "--quiet", container, BASE.name)
    finally:
        buildah("rm", container)
        archive.unlink()
