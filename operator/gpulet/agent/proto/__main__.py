"""Generates the message modules anew (needs grpcio-tools): ``python -m gpulet.agent.proto``."""

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]


def main() -> int:
    here = Path(__file__).parent
    root = here.parents[2]
    files = sorted(str(path.relative_to(root)) for path in here.glob("*.proto"))
    return int(protoc.main(["protoc", f"-I{root}", f"--python_out={root}", f"--pyi_out={root}", *files]))


if __name__ == "__main__":
    sys.exit(main())
