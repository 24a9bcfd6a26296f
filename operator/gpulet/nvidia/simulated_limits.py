"""Limits of a simulated MPS daemon, with the values that the real control program makes of odd input.

Only the standard library is imported, so that the daemon's start costs little.
"""

import contextlib

_GIB, _MIB = 1 << 30, 1 << 20


def number_prefix(text: str) -> float | None:
    """The leading number of ``text`` as C's strtof reads it: ``20x`` is 20, ``abc`` is nothing."""
    end = 0
    while end < len(text) and (text[end].isdigit() or text[end] == "." or (end == 0 and text[end] == "-")):
        end += 1
    with contextlib.suppress(ValueError):
        return float(text[:end])
    return None


def limit_bytes(text: str) -> int:
    """A memory limit as the real program reads it: leading integer, then G or else M. ``1.5G`` is 1M, ``-3G`` wraps."""
    end = 1 if text[:1] == "-" else 0
    while end < len(text) and text[end].isdigit():
        end += 1
    number = int(text[:end]) if text[:end].lstrip("-") else 0
    unit = _GIB if text[end : end + 1].upper() == "G" else _MIB
    return (number * unit) % (1 << 64)


class Limits:
    """Percentage and memory limits of the daemon (for the next server) or of a server (for new clients)."""

    def __init__(self, percent: float = 100.0, memory: dict[int, int] | None = None) -> None:
        self.percent = percent
        self.memory = dict(memory or {})

    def set_percent(self, text: str) -> str:
        number = number_prefix(text)
        if number is not None and 0.0 < number <= 100.0:
            self.percent = number
        return f"{self.percent:.1f}\n"

    def set_memory(self, device: str, text: str) -> str:
        if device.isdigit() and text:
            value = limit_bytes(text)
            self.memory.pop(int(device), None)
            if value:
                self.memory[int(device)] = value
        return ""

    def get_memory(self, device: str) -> str:
        value = self.memory.get(int(device)) if device.isdigit() else None
        if value is None:
            return ""
        return f"{value // _GIB}G\n" if value % _GIB == 0 else f"{value // _MIB}M\n"
