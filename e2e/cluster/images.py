"""The product's images, from its own Dockerfiles: built where no registry is, and given to the nodes."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from e2e.cluster import node as nodes
from e2e.cluster import oci
from e2e.cluster.base_image import BASE, buildah, copy_out, ensure_base
from e2e.cluster.commands import Progress, run
from e2e.cluster.layout import Node
from e2e.cluster.packages import FOR_IMAGES, ensure_packages
from e2e.cluster.paths import REPOSITORY, cache_root, locked, write_atomically

NAMES = ("operator", "agent", "triton", "tuner")
# What a Dockerfile may copy; its own folder comes on top.
INPUTS = ("pyproject.toml", "README.md", "LICENSE", ".dockerignore", "operator/gpulet")
FIXTURES = ("pause", "probe")


def image_name(short: str) -> str:
    """The name under which pods ask for an image. A name that no registry answers to, so it must be on the node."""
    return f"localhost/gpulet-{short}:dev"


def buildable() -> list[str]:
    """The images that have a Dockerfile."""
    return [short for short in NAMES if _dockerfile(short).exists()]


def build(short: str, progress: Progress) -> oci.Image:
    """Build one of the product's images, unless it was built from the same inputs before.

    Raises RuntimeError with the end of the build's output when it fails.
    """
    store = _store()
    with locked(cache_root() / "locks" / "images"):
        record = cache_root() / "images" / f"{short}.json"
        key = _inputs_hash(short)
        if record.exists() and (kept := json.loads(record.read_text()))["key"] == key:
            image = oci.Image(image_name(short), store, kept["manifest"])
            if all(blob.exists() for blob in image.blobs().values()):
                return image
        ensure_packages(FOR_IMAGES, progress)
        # What a build that was killed has left.
        buildah("rm", "--all")
        ensure_base(progress)
        progress(f"building {image_name(short)}")
        _buildah_build(short)
        copy_out(image_name(short), f"oci:{store}:{short}")
        image = oci.tagged(store, short, image_name(short))
        # Who edits while it builds gets what was there, and another build next time.
        if _inputs_hash(short) == key:
            write_atomically(record, json.dumps({"key": key, "manifest": image.manifest}))
        oci.drop_unused(store)
        return image


def fixture_image(short: str, binaries: Path) -> oci.Image:
    """An image that holds one static program of go/fixtures and nothing else."""
    return oci.write_image(
        cache_root() / "oci-fixtures", image_name(short), {f"/{short}": binaries / short}, [f"/{short}"]
    )


def load_into(targets: list[Node], images: list[oci.Image], binaries: Path) -> list[str]:
    """Import images into nodes that do not have them as they are; returns "image on node" for each import made."""
    made = []
    for node in targets:
        for image in images:
            if _digest_on(node, image.name, binaries) != image.digest:
                _import(node, image, binaries)
                _drop_replaced(node, binaries)
                made.append(f"{image.name} on {node.name}")
    return made


def _dockerfile(short: str) -> Path:
    return REPOSITORY / "images" / short / "Dockerfile"


def _store() -> Path:
    return cache_root() / "oci"


def _inputs_hash(short: str) -> str:
    digest = hashlib.sha256(BASE.key.encode())
    for name in (*INPUTS, f"images/{short}"):
        path = REPOSITORY / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(REPOSITORY)}\0{file.stat().st_mode:o}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _buildah_build(short: str) -> None:
    pip_cache = cache_root() / "pip"
    pip_cache.mkdir(parents=True, exist_ok=True)
    settings = [("cache-dir", "/var/cache/pip"), ("disable-pip-version-check", "true")]
    mounts = ["--volume", f"{pip_cache}:/var/cache/pip"]
    if bundle := _certificate_bundle():
        mounts += ["--volume", f"{bundle}:/etc/gpulet-build-ca.crt:ro"]
        settings.append(("cert", "/etc/gpulet-build-ca.crt"))
    if index := os.environ.get("PIP_INDEX_URL"):
        settings.append(("index-url", index))
    # A file and not --env: what --env sets stays in the image.
    pip_conf = cache_root() / "pip.conf"
    write_atomically(pip_conf, "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings))
    mounts += ["--volume", f"{pip_conf}:/etc/pip.conf:ro"]
    build = ["build", "--layers", "--build-arg", f"BASE={BASE.name}", "--tag", image_name(short)]
    buildah(*build, *mounts, "--file", str(_dockerfile(short)), str(REPOSITORY))


def _certificate_bundle() -> Path | None:
    """The machine's own bundle of certificates, where its environment names one."""
    for variable in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if (value := os.environ.get(variable)) and Path(value).is_file():
            return Path(value).resolve()
    return None


def _digest_on(node: Node, name: str, binaries: Path) -> str | None:
    listed = run(nodes.ctr(node, binaries, "images", "list", f"name=={name}")).splitlines()[1:]
    return next((line.split()[2] for line in listed if line.split()[0] == name), None)


def _drop_replaced(node: Node, binaries: Path) -> None:
    """Forget images that have lost their name to a newer one; else every change of code would stay on the disk."""
    listed = [line.split() for line in run(nodes.ctr(node, binaries, "images", "list")).splitlines()[1:]]
    # The kubelet's view adds each image once more, under the digest of its configuration.
    named = {words[2] for words in listed if not words[0].startswith("sha256:")}
    replaced = [words[0] for words in listed if words[2] not in named]
    if replaced:
        run(nodes.ctr(node, binaries, "images", "remove", *replaced))


def _import(node: Node, image: oci.Image, binaries: Path) -> None:
    held = set(run(nodes.ctr(node, binaries, "content", "list", "-q")).split())
    command = [str(word) for word in nodes.ctr(node, binaries, "images", "import", "--local", "-")]
    importing = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert importing.stdin and importing.stdout
    try:
        oci.stream(image, set(image.blobs()) - held, importing.stdin)
        importing.stdin.close()
    except BrokenPipeError:  # its own words say more
        pass
    said = importing.stdout.read().decode(errors="replace")
    if importing.wait() or _digest_on(node, image.name, binaries) != image.digest:
        raise RuntimeError(f"{image.name} could not be imported on {node.name}: {said[-2000:]}")
