"""Mounting and unmounting a tmpfs by system call: minimal images hold no mount program."""

import ctypes
import os
from pathlib import Path

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(folder: Path) -> None:
    """A tmpfs for everybody, with the kernel's default size, half of the memory: page-locked host memory of MPS
    clients needs room. Raises OSError."""
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    _check(_LIBC.mount(b"gpulet-shm", bytes(folder), b"tmpfs", flags, b"mode=1777"), folder)


def unmount(folder: Path) -> None:
    """Off the folder at once, gone when its last user is. Raises OSError."""
    _check(_LIBC.umount2(bytes(folder), _DETACH), folder)


def _check(result: int, folder: Path) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(folder))
