"""Mounts by system call: minimal images hold no mount program, and a child can call these before it becomes one."""

import ctypes
import os
from pathlib import Path

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH = 2
_BIND, _REC, _SLAVE = 1 << 12, 1 << 14, 1 << 19
_NEW_MOUNT_NAMESPACE = 0x20000
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(folder: Path) -> None:
    """A tmpfs for everybody, with the kernel's default size, half of the memory: page-locked host memory of MPS
    clients needs room. Raises OSError."""
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    _check(_LIBC.mount(b"gpulet-shm", bytes(folder), b"tmpfs", flags, b"mode=1777"), folder)


def unmount(folder: Path) -> None:
    """Off the folder at once, gone when its last user is. Raises OSError."""
    _check(_LIBC.umount2(bytes(folder), _DETACH), folder)


def see_as_dev_shm(folder: Path) -> None:
    """This process alone sees ``folder`` at /dev/shm from now on. Raises OSError."""
    _check(_LIBC.unshare(_NEW_MOUNT_NAMESPACE), folder)
    _check(_LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_REC | _SLAVE), None), folder)
    _check(_LIBC.mount(bytes(folder), b"/dev/shm", None, ctypes.c_ulong(_BIND), None), folder)


def _check(result: int, folder: Path) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(folder))
