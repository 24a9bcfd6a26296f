"""Services: one per model, over its routed pods."""

from typing import Any

from gpulet.api import names, workload
from gpulet.build.gpulet import owner_reference


def model_service(model: dict[str, Any]) -> dict[str, Any]:
    """The Service of an InferenceModel (an object with metadata): its name, v2 HTTP on 8000, gRPC on 8001."""
    metadata = model["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {names.LABEL_MODEL: metadata["name"], names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "ownerReferences": [owner_reference(model, controller=True)],
        },
        "spec": {
            "selector": {names.LABEL_MODEL: metadata["name"], names.LABEL_ROUTED: "true"},
            "ports": [
                {"name": "http", "port": workload.HTTP_PORT, "targetPort": "http", "protocol": "TCP"},
                {"name": "grpc", "port": workload.GRPC_PORT, "targetPort": "grpc", "protocol": "TCP"},
            ],
        },
    }


def model_url(namespace: str, name: str) -> str:
    """Where callers inside the cluster reach the model."""
    return f"http://{name}.{namespace}.svc:{workload.HTTP_PORT}/v2/models/{name}"
