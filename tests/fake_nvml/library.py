"""The fake ``libnvidia-ml.so.1``: built when a test asks for it, found as the driver's is, steered from Python."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent
_FLAGS = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-soname,libnvidia-ml.so.1"]
_CACHE = Path(tempfile.gettempdir()) / "gpulet-test-cache" / "fake-nvml"
_ALWAYS = -1
_NO_INSTANCE = 0xFFFFFFFF


def build() -> Path:
    """The library of the sources as they are now; raises RuntimeError that says how to get a compiler."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = _CACHE / digest / "libnvidia-ml.so.1"
    if target.exists():
        return target
    compiler = os.environ.get("CC") or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise RuntimeError(
            "the fake libnvidia-ml.so.1 needs a C compiler: install one (Debian: apt-get install gcc libc6-dev), "
            "or name one in the variable CC"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [compiler, *_FLAGS, "-o", str(made), *(str(path) for path in sources if path.suffix == ".c")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        made.rename(target)
    return target


def load() -> Any:
    """Loaded before nvidia-ml-py asks for that name: the dynamic loader then gives it this one."""
    return ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)


@dataclass(frozen=True)
class FakeNvml:
    """The GPUs of a machine that is not there; all processes with the same state file see the same."""

    library: Any
    state: Path

    def environment(self) -> dict[str, str]:
        """For another process, so that it finds this library as it would find the driver's."""
        return {"LD_LIBRARY_PATH": str(build().parent), "FAKE_NVML_STATE": str(self.state)}

    def machine(self, *products: str) -> list[str]:
        """These products from now on, nothing else of the state; returns their UUIDs."""
        uuids = [f"GPU-{i:08d}-0000-4000-8000-00000000000{i}" for i in range(len(products))]
        array = ctypes.c_char_p * len(products)
        keys, names = array(*(p.encode() for p in products)), array(*(u.encode() for u in uuids))
        if self.library.fake_machine(keys, len(products), names):
            raise ValueError(f"products {products}: one is not in products.c")
        return uuids

    def set(self, gpu: int, **fields: int) -> None:
        for name, value in fields.items():
            self.library.fake_set(gpu, name.encode(), ctypes.c_uint64(value))

    def get(self, gpu: int, field: str) -> int:
        self.library.fake_get.restype = ctypes.c_uint64
        return int(self.library.fake_get(gpu, field.encode()))

    def driver(self, version: str, cuda: int) -> None:
        """``cuda`` as NVML tells it: 12080 for 12.8."""
        self.library.fake_driver(version.encode(), ctypes.c_uint64(cuda))

    def fail(self, function: str, code: int, gpu: int = -1, times: int = _ALWAYS) -> None:
        """Calls of a function fail (``*``: all that concern the GPU), so many times."""
        self.library.fake_fail(function.encode(), gpu, code, times)

    def heal(self) -> None:
        self.library.fake_heal()

    def process(self, gpu: int, pid: int, kind: str = "C", mib: int = 0, instance: int = _NO_INSTANCE) -> None:
        """``kind``: C(ompute), G(raphics) or M(PS client); ``instance``: id of the GPU instance it runs in."""
        self.library.fake_process(gpu, pid, ord(kind), ctypes.c_uint64(mib), ctypes.c_uint32(instance))

    def no_processes(self, gpu: int) -> None:
        self.library.fake_no_processes(gpu)

    def event(self, gpu: int, kind: int, data: int) -> None:
        self.library.fake_event(gpu, ctypes.c_uint64(kind), ctypes.c_uint64(data))

    def reset(self, gpu: int) -> None:
        self.library.fake_reset(gpu)

    def boot(self) -> None:
        self.library.fake_boot()

    def instances(self, gpu: int) -> int:
        """GPU instances, with or without compute instances."""
        return int(self.library.fake_instances(gpu))


def write_proc(folder: Path, gpus: int = 2) -> Path:
    """A /proc as the driver fills it: majors, and an access file for each instance that could be made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "devices").write_text("Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n\nBlock devices:\n")
    minor = 2
    for gpu in range(gpus):
        for instance in range(1, 9):
            base = folder / f"driver/nvidia/capabilities/gpu{gpu}/mig/gi{instance}"
            for access in (base / "access", base / "ci0/access"):
                access.parent.mkdir(parents=True, exist_ok=True)
                minor += 1
                access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    return folder
