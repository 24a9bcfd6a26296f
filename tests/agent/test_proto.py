"""The checked-in message modules are those of the .proto files."""

from pathlib import Path

import pytest
from grpc_tools import protoc

import gpulet.agent.proto

HERE = Path(gpulet.agent.proto.__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.parametrize("name", ["dra", "health", "registration"])
def test_generated_modules_are_current(name: str, tmp_path: Path) -> None:
    """Else: python -m gpulet.agent.proto."""
    source = HERE / f"{name}.proto"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--python_out={tmp_path}", str(source.relative_to(ROOT))]) == 0
    made = (tmp_path / "gpulet/agent/proto" / f"{name}_pb2.py").read_text()
    assert made == (HERE / f"{name}_pb2.py").read_text()


def test_the_services_are_those_the_kubelet_dials() -> None:
    from gpulet.agent.proto import dra_pb2, health_pb2, registration_pb2

    services = {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": (dra_pb2, "NodePrepareResources", "NodeUnprepareResources"),
        "v1.DRAResourceHealth": (health_pb2, "NodeWatchResources"),
        "pluginregistration.Registration": (registration_pb2, "GetInfo", "NotifyRegistrationStatus"),
    }
    for full_name, (module, *methods) in services.items():
        (service,) = module.DESCRIPTOR.services_by_name.values()
        assert service.full_name == full_name
        assert [m.name for m in service.methods] == methods
