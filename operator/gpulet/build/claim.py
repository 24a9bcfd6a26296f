"""ResourceClaims: a share of one pinned device, accounted by kube-scheduler, made true by the node agent."""

from typing import Any

from gpulet.api import names
from gpulet.api.base import memory_quantity
from gpulet.api.gpulet import Gpulet
from gpulet.api.workload import ShareConfig
from gpulet.build.gpulet import owner_reference, share_of
from gpulet.model.device import Device


def device_selector(device: Device) -> str:
    """CEL that matches this device and no other of the driver.

    ``orValue`` because a missing attribute would be a run-time error that fails the whole claim.
    """
    attribute = f"device.attributes['{names.DRIVER}'].?"
    terms = [f"{attribute}uuid.orValue('') == '{device.gpu}'"]
    if device.profile is None:
        terms.append(f"{attribute}type.orValue('') == 'gpu'")
    else:
        terms += [
            f"{attribute}type.orValue('') == 'mig'",
            f"{attribute}profile.orValue('') == '{device.profile}'",
            f"{attribute}placementStart.orValue(-1) == {device.start}",
        ]
    return " && ".join(terms)


def claim(gpulet: Gpulet, *, config: ShareConfig) -> dict[str, Any]:
    """The claim of a Gpulet: same name, same namespace, controlled by it."""
    share = share_of(gpulet.spec)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": gpulet.metadata.name,
            "namespace": gpulet.metadata.namespace,
            "labels": {
                names.LABEL_GPULET: gpulet.metadata.name,
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_ORIGIN: gpulet.metadata.labels.get(names.LABEL_ORIGIN, names.ORIGIN_MANUAL),
            },
            "ownerReferences": [owner_reference(reference_of(gpulet), controller=True)],
        },
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": names.CLAIM_REQUEST,
                        "exactly": {
                            "deviceClassName": names.DEVICE_CLASS,
                            "selectors": [{"cel": {"expression": device_selector(share.device)}}],
                            "capacity": {
                                "requests": {
                                    "computePercent": str(share.compute_percent),
                                    "memory": memory_quantity(share.memory_mib),
                                    "clients": str(share.clients),
                                }
                            },
                        },
                    }
                ],
                "config": [
                    {
                        "requests": [names.CLAIM_REQUEST],
                        "opaque": {"driver": names.DRIVER, "parameters": config.to_dict()},
                    }
                ],
            }
        },
    }


def reference_of(gpulet: Gpulet) -> dict[str, Any]:
    """What ``owner_reference`` needs of a Gpulet."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Gpulet",
        "metadata": {"name": gpulet.metadata.name, "uid": gpulet.metadata.uid},
    }
