"""Linking what TVM compiled into a shared library: the linker alone, no C compiler, in the image and in the pod."""

import subprocess
from pathlib import Path
from typing import Any


def link(path: str, files: list[str], **_: Any) -> None:
    """TVM's ``fcompile``: object files to one shared library; raises RuntimeError with the linker's words.

    Symbols of libm and of the TVM runtime stay open: the process that loads the library has them.
    """
    done = subprocess.run(["ld", "-shared", "-o", path, *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ld: {done.stderr[-500:]}")


# TVM then hands over object files, not C source.
link.object_format = "o"  # type: ignore[attr-defined]


def export(module: Any, path: Path) -> None:
    """Writes a compiled module or executable as a shared library."""
    module.export_library(str(path), fcompile=link)
