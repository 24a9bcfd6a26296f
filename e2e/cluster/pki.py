"""Certificates and kubeconfigs of one cluster. They live as long as the cluster does."""

import base64
import datetime
import ipaddress
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.layout import Layout
from e2e.cluster.paths import write_atomically

LIFETIME = datetime.timedelta(days=365)
SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Identity:
    """Who a certificate speaks for: common name, organisation (Kubernetes: user and group), and addresses served."""

    user: str
    group: str | None = None
    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def _identities(cluster: Layout) -> dict[str, Identity]:
    server = (cluster.service_address, cluster.host_address, "127.0.0.1")
    nodes = {n.name: Identity(f"system:node:{n.name}", "system:nodes", (n.address,)) for n in cluster.nodes}
    return {
        "apiserver": Identity("kube-apiserver", addresses=server, names=SERVICE_NAMES),
        "kubelet-client": Identity("kubelet-client", "system:masters"),
        "front-proxy": Identity("front-proxy"),
        "admin": Identity("admin", "system:masters"),
        "controller-manager": Identity("system:kube-controller-manager"),
        "scheduler": Identity("system:kube-scheduler"),
        "proxy": Identity("system:kube-proxy"),
        **nodes,
    }


def ensure_pki(cluster: Layout) -> Path:
    """Make keys, certificates and kubeconfigs (NAME.conf) if they are missing, and return their folder."""
    folder = cluster.folder / "pki"
    if not folder.exists():
        fresh = folder.with_name("pki.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        _write_all(cluster, fresh)
        fresh.rename(folder)
    write_atomically(cluster.kubeconfig, (folder / "admin.conf").read_text(), 0o600)
    return folder


def _write_all(cluster: Layout, folder: Path) -> None:
    ca_key, ca = _authority()
    (folder / "ca.key").write_bytes(_pem(ca_key))
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    tokens = ec.generate_private_key(ec.SECP256R1())
    (folder / "sa.key").write_bytes(_pem(tokens))
    (folder / "sa.pub").write_bytes(
        tokens.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for name, identity in _identities(cluster).items():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(identity, key, ca_key, ca).public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.key").write_bytes(_pem(key))
        (folder / f"{name}.crt").write_bytes(certificate)
        config = _kubeconfig(cluster, (folder / "ca.crt").read_bytes(), certificate, _pem(key))
        (folder / f"{name}.conf").write_text(yaml.safe_dump(config))


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpulet-local-cluster")])
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return key, builder.sign(key, hashes.SHA256())


def _certificate(
    identity: Identity, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate
) -> x509.Certificate:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, identity.user)]
    if identity.group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group))
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(x509.Name(parts), ca.subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    served: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(a)) for a in identity.addresses]
    served += [x509.DNSName(name) for name in identity.names]
    if served:
        builder = builder.add_extension(x509.SubjectAlternativeName(served), critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A clock that is set back a little must not make the cluster's certificates invalid.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _kubeconfig(cluster: Layout, ca: bytes, certificate: bytes, key: bytes) -> dict[str, object]:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    name = f"gpulet-local-{cluster.name}"
    user = {"client-certificate-data": text(certificate), "client-key-data": text(key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": cluster.server, "certificate-authority-data": text(ca)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
