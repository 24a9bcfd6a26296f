"""`gpulet map`: who sits where, one bar of text a device."""

from collections import defaultdict
from typing import Any

from gpulet.api.gpulet import Gpulet
from gpulet.cli.words import workload
from gpulet.controller.inventory import gpus
from gpulet.controller.world import World

_WIDTH = 50
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def placed(world: World) -> list[dict[str, Any]]:
    """Every GPU with the shares on it, as JSON has it."""
    on: dict[str, list[Gpulet]] = defaultdict(list)
    for gpulet in world.gpulets.values():
        on[gpulet.spec.device.gpu].append(gpulet)
    result = []
    for number, gpu in enumerate(gpus(world.slices.values())):
        shares = sorted(on[gpu.uuid], key=lambda g: (g.spec.device.mig.start if g.spec.device.mig else 0, g.key))
        result.append(
            {
                "node": gpu.node,
                "number": number,
                "gpu": gpu.uuid,
                "product": gpu.product,
                "shares": [
                    {
                        "gpulet": "/".join(g.key),
                        "computePercent": g.spec.compute_percent,
                        "mig": f"{g.spec.device.mig.profile}@{g.spec.device.mig.start}" if g.spec.device.mig else None,
                        "workload": workload(g),
                    }
                    for g in shares
                ],
            }
        )
    return result


def text(devices: list[dict[str, Any]]) -> list[str]:
    """One bar a device: as many letters of a share as its percent says, dots for what is free."""
    lines = []
    for gpu in devices:
        by_device: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
        for share in gpu["shares"]:
            by_device[share["mig"]].append(share)
        lines.append(f"{gpu['node']} {gpu['product']} {gpu['gpu']}")
        for mig, shares in sorted(by_device.items(), key=lambda item: item[0] or "") or [(None, [])]:
            lines += _bar(mig, shares)
    return lines


def _bar(mig: str | None, shares: list[dict[str, Any]]) -> list[str]:
    bar, used, legend = "", 0, []
    for letter, share in zip(_LETTERS, shares, strict=False):
        used += share["computePercent"]
        bar += letter * (round(used * _WIDTH / 100) - len(bar))
        legend.append(f"    {letter} {share['computePercent']:3} %  {share['gpulet']}  {share['workload']}")
    return [f"  {mig or 'whole':12} [{bar:.<{_WIDTH}}] {max(0, 100 - used)} % free", *legend]
