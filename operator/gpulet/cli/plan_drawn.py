"""A plan as a picture: each GPU a bar of its gpulets; as SVG alone, or in a page with tables. Nothing is loaded.

Every share has a title for pointers and screen readers, and a line of text below its bar; colours only help. Text and
ground have a contrast of at least 4.5 in light and in dark, which follow the reader's setting.
"""

import colorsys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from gpulet.cli.plan import Answer
from gpulet.cli.plan_shown import fates, in_order, step_words, summary, why
from gpulet.model.demand import ModelId
from gpulet.model.device import Gpu
from gpulet.model.plan import Slot, Usage
from gpulet.planner.packing import key_of

_WIDTH, _LEFT, _BAR = 960, 12, 936
_TITLE, _HEIGHT, _LINE, _GAP = 22, 34, 18, 18
_LETTER = 7.2
"""Width of a character at 12 px, rounded up."""
_SATURATION = 0.7
_HUES = (210, 32, 140, 280, 0, 178, 330, 55, 250, 100, 300, 20)


@dataclass(frozen=True)
class Scheme:
    """Colours of one setting of the reader. Plain values: many programs that show SVG know no CSS variables."""

    ink: str
    dim: str
    ground: str
    free: str
    edge: str
    lightness: float
    """Of the shares, 0 to 1."""

    def shares(self) -> list[str]:
        """A colour for each model, in turn."""
        rgb = [colorsys.hls_to_rgb(hue / 360, self.lightness, _SATURATION) for hue in _HUES]
        return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in rgb]

    def css(self) -> str:
        rules = [
            f"svg.plan, body.plan {{ background: {self.ground}; color: {self.ink}; }}",
            f".plan text {{ fill: {self.ink}; }}",
            f".plan .dim {{ fill: {self.dim}; }}",
            f".plan .free {{ fill: {self.free}; stroke: {self.edge}; }}",
            f".plan .share {{ stroke: {self.edge}; }}",
            f".plan .taken {{ fill: {self.free}; stroke: {self.edge}; stroke-dasharray: 4 3; }}",
            f".plan th, .plan td {{ border-bottom: 1px solid {self.edge}; }}",
        ]
        rules += [f".plan .c{i} {{ fill: {colour}; }}" for i, colour in enumerate(self.shares())]
        return "\n".join(rules)


LIGHT = Scheme("#1b1f24", "#57606a", "#ffffff", "#eef1f4", "#8c959f", 0.88)
DARK = Scheme("#eef1f4", "#a5adb6", "#15181c", "#262b31", "#6b747d", 0.24)

STYLE = f"""
.plan text {{ font: 12px system-ui, sans-serif; }}
.plan .head {{ font-weight: 600; font-size: 13px; }}
svg.plan {{ max-width: 100%; height: auto; }}
{LIGHT.css()}
@media (prefers-color-scheme: dark) {{
{DARK.css()}
}}
"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 1.5rem; }
th, td { text-align: left; padding: 0.25rem 0.5rem; vertical-align: top; }
caption { text-align: left; }
.scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class _Part:
    """A piece of a GPU's bar, from 0 to 1 of its width."""

    start: float
    width: float
    style: str
    label: str
    title: str


def svg(answer: Answer) -> str:
    """The picture alone."""
    return "\n".join(_picture(answer, style=STYLE))


def html(answer: Answer) -> str:
    """A page of its own: the picture, and all that it says as tables."""
    shares = [
        (
            slot.device.node,
            slot.device.gpu,
            "-" if slot.device.profile is None else f"{slot.device.profile}@{slot.device.start}",
            f"{slot.compute_percent} %",
            f"{slot.memory_mib} MiB",
            ", ".join(map(str, slot.models)),
            ", ".join(str(t.batch) for t in slot.turns) or str(slot.batch),
            str(slot.instances),
        )
        for slot in in_order(answer.plan.slots)
    ]
    models = [
        (
            str((placed or out).model),  # type: ignore[union-attr]  # one of the two is there
            "yes" if out is None else "in part" if placed else "no",
            "-" if placed is None else f"{placed.predicted_latency_ms:.4g} ms",
            "-" if placed is None else f"{placed.sustainable_per_s:.4g}/s",
            why(placed, out),
        )
        for placed, out in fates(answer)
    ]
    steps = [(str(step.stage), step.kind, step_words(step), step.reason) for step in answer.steps]
    notes = "".join(f"<li>{escape(note)}</li>" for note in answer.notes)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>Gpulet plan</title><style>{STYLE}{_PAGE_STYLE}</style></head><body class="plan"><main>',
            f"<h1>Plan</h1><p>{escape(summary(answer))}</p>",
            '<div class="scroll">',
            *_picture(answer, style=""),
            "</div>",
            *_table("Models", ("model", "fits", "predicted", "sustains", "why"), models),
            *_table("Shares", ("node", "GPU", "MIG", "share", "memory", "models", "batch", "instances"), shares),
            *(_table("Steps", ("stage", "step", "what", "why"), steps) if steps else ()),
            f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "",
            "</main></body></html>",
        ]
    )


def _table(name: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f'<h2>{name}</h2><div class="scroll"><table><caption>{name} of the plan</caption><thead><tr>'
    yield "".join(f'<th scope="col">{escape(column)}</th>' for column in columns) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"


def _picture(answer: Answer, *, style: str) -> Iterator[str]:
    colour = {model: i % len(_HUES) for i, model in enumerate(sorted({m for s in answer.plan.slots for m in s.models}))}
    slots: dict[tuple[str, str], list[Slot]] = defaultdict(list)
    for slot in in_order(answer.plan.slots):
        slots[key_of(slot.device)].append(slot)
    usages: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    for usage in answer.problem.usages:
        usages[key_of(usage.device)].append(usage)
    body: list[str] = []
    y, empty = 30.0, 0
    for gpu in sorted(answer.problem.gpus, key=key_of):
        own, taken = slots.get(key_of(gpu), []), usages.get(key_of(gpu), [])
        if not own and not taken:
            empty += 1
            continue
        body += _bar(gpu, [*_taken(gpu, taken), *_parts(gpu, own, taken, colour)], y)
        y += _TITLE + _HEIGHT + _LINE * len(_lines(own)) + _GAP
        body += [
            f'<text x="{_LEFT}" y="{y - _GAP - _LINE * (len(_lines(own)) - 1 - i) - 4:g}">{escape(line)}</text>'
            for i, line in enumerate(_lines(own))
        ]
    body.append(f'<text class="dim" x="{_LEFT}" y="{y + 4:g}">{_empty_words(empty)}</text>')
    height = round(y + 20)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" role="img" viewBox="0 0 {_WIDTH} {height}" '
    yield f'width="{_WIDTH}" height="{height}" aria-labelledby="plan-title plan-text">'
    yield f'<title id="plan-title">Plan of {answer.plan.gpus} GPUs</title>'
    yield f'<desc id="plan-text">{escape(summary(answer))}</desc>'
    if style:
        yield f"<style>{style}</style>"
    yield f'<text class="head" x="{_LEFT}" y="18">{escape(_headline(answer))}</text>'
    yield from body
    yield "</svg>"


def _empty_words(empty: int) -> str:
    return "1 GPU is empty" if empty == 1 else f"{empty} GPUs are empty"


def _headline(answer: Answer) -> str:
    plan = answer.plan
    left = f"; {len(answer.unplaced)} models do not fit" if answer.unplaced else ""
    return f"{plan.gpus} GPUs of {len(answer.problem.gpus)}, lower bound {plan.lower_bound} ({plan.bound_kind}){left}"


def _bar(gpu: Gpu, parts: list[_Part], y: float) -> Iterator[str]:
    top = y + _TITLE
    yield f'<text class="head" x="{_LEFT}" y="{y + 14:g}">{escape(f"{gpu.node}  {gpu.product}  {gpu.uuid}")}</text>'
    yield f'<rect class="free" x="{_LEFT}" y="{top:g}" width="{_BAR}" height="{_HEIGHT}"/>'
    for part in parts:
        x, width = _LEFT + part.start * _BAR, part.width * _BAR
        yield f"<g><title>{escape(part.title)}</title>"
        yield f'<rect class="{part.style}" x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{_HEIGHT}" rx="2"/>'
        fits = int((width - 10) / _LETTER)
        if fits >= min(4, len(part.label)):
            text = part.label if len(part.label) <= fits else part.label[: fits - 1] + "…"
            yield f'<text x="{x + 5:.1f}" y="{top + 21:g}">{escape(text)}</text>'
        yield "</g>"


def _parts(gpu: Gpu, slots: list[Slot], taken: list[Usage], colour: dict[ModelId, int]) -> Iterator[_Part]:
    """Shares of the whole GPU side by side, after what is taken; MIG placements where they lie."""
    at = sum(u.compute_percent for u in taken if u.device.profile is None) / 100
    for slot in slots:
        start, width = _mig_span(gpu, slot.device.profile, slot.device.start) or (at, slot.compute_percent / 100)
        if slot.device.profile is None:
            at += width
        style = f"share c{colour[slot.models[0]]}"
        yield _Part(start, width, style, _label(slot), _line(slot))


def _taken(gpu: Gpu, usages: list[Usage]) -> Iterator[_Part]:
    at = 0.0
    for usage in usages:
        start, width = _mig_span(gpu, usage.device.profile, usage.device.start) or (at, usage.compute_percent / 100)
        if usage.device.profile is None:
            at += width
        title = f"taken: {usage.compute_percent} % for {usage.purpose} of namespace {usage.namespace}"
        yield _Part(start, width, "taken", "taken", title)


def _mig_span(gpu: Gpu, profile: str | None, start: int | None) -> tuple[float, float] | None:
    """Where a placement lies on the bar, in memory slices of the GPU; None: not a placement."""
    placement = next((p for p in gpu.placements if (p.profile, p.start) == (profile, start)), None)
    if placement is None:
        return None
    slices = max(p.start + p.size for p in gpu.placements)
    return placement.start / slices, placement.size / slices


def _label(slot: Slot) -> str:
    names = " + ".join(model.name for model in slot.models)
    if slot.device.profile is None:
        return f"{names} {slot.compute_percent} %"
    return f"{names} {slot.device.profile}" + ("" if slot.compute_percent == 100 else f" {slot.compute_percent} %")


def _line(slot: Slot) -> str:
    """All that is to say of a share."""
    names = " and ".join(str(model) for model in slot.models)
    where = "" if slot.device.profile is None else f" of {slot.device.profile} at slice {slot.device.start}"
    cycle = f", in turns every {slot.cycle_us / 1000:g} ms" if slot.cycle_us else ""
    batch = "/".join(str(t.batch) for t in slot.turns) or str(slot.batch)
    return f"{names}: {slot.compute_percent} %{where}, {slot.memory_mib} MiB, batch {batch} x {slot.instances}{cycle}"


def _lines(slots: list[Slot]) -> list[str]:
    return [_line(slot) for slot in slots]
