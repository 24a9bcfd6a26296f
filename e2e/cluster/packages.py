"""Debian packages that the cluster needs on the machine."""

import os
import shutil

from e2e.cluster.commands import Progress, run

# What a program is called, and the package that brings it.
FOR_THE_CLUSTER = {
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "nft": "nftables",
    "ip": "iproute2",
}
FOR_IMAGES = {"mmdebstrap": "mmdebstrap", "buildah": "buildah", "skopeo": "skopeo"}


def ensure_packages(programs: dict[str, str], progress: Progress) -> None:
    """Install, with apt, the packages of those programs that are missing.

    Raises SystemExit where apt does not exist, naming the programs to install by other means.
    """
    missing = sorted({package for program, package in programs.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise SystemExit(f"install these first, apt-get is not here to do it: {', '.join(missing)}")
    progress(f"installing {' '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=quiet)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet)
