"""The commands for people: each has --help, -o json where a script may want it, and an exit code that tells.

0: done, and as asked; 1: bad input, or no answer; 2: an answer that is a no (something does not fit, a request failed).
"""

import asyncio
import json
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from gpulet.cli.live import View
    from gpulet.cli.plan import Answer

T = TypeVar("T")


class Output(StrEnum):
    """How results are written."""

    table = "table"
    json = "json"


class Objective(StrEnum):
    """What a plan is to be good at: as few GPUs as possible for the rates, or the highest factor of all rates."""

    gpus = "gpus"
    rate = "rate"


class PlanOutput(StrEnum):
    """How a plan is written: the pictures have each GPU as a bar of its shares."""

    table = "table"
    json = "json"
    yaml = "yaml"
    html = "html"
    svg = "svg"


Kubeconfig = Annotated[
    Path | None, typer.Option(help="Of the cluster; absent: the pod's own, $KUBECONFIG or ~/.kube/config.")
]
Format = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for scripts.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (plan, top, explain, map_, node, doctor, bench):
        app.command(command.__name__.rstrip("_"))(command)


def plan(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Manifests: files or folders.")] = None,
    fleet: Annotated[list[str] | None, typer.Option(metavar="PRODUCT=COUNT", help="GPUs to plan for.")] = None,
    from_cluster: Annotated[bool, typer.Option(help="Start from what the cluster holds; PATH adds to it.")] = False,
    objective: Annotated[
        Objective, typer.Option(help="The fewest GPUs for these rates, or the highest common factor of all rates.")
    ] = Objective.gpus,
    policy: Annotated[Path | None, typer.Option(help="Policy file; absent: the cluster's, or the defaults.")] = None,
    output: Annotated[PlanOutput, typer.Option("--output", "-o", help="json and yaml are for scripts.")] = (
        PlanOutput.table
    ),
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say which shares the models need, on how few GPUs, and how few it can be at best. Changes nothing.

    PATH: InferenceModels and ModelProfiles; ResourceSlices and Gpulets, where given, are the GPUs and what is on them.
    Exit code 0: all fit; 2: some do not; 1: bad input.
    """
    from gpulet.api.policy import PolicyError, load_policy
    from gpulet.cli.fleet import FleetError
    from gpulet.cli.manifests import InputError, manifests
    from gpulet.cli.plan import ask

    live = _view(kubeconfig, follows_policy=policy is None) if from_cluster else None
    try:
        chosen = load_policy(policy) if policy is not None else None
        answer = ask(manifests(paths or []), fleet or [], live, chosen, objective.value)
    except (InputError, FleetError, PolicyError) as error:
        _fail(error)
    _write_plan(answer, output)
    raise typer.Exit(0 if answer.all_fit else 2)


def _write_plan(answer: "Answer", output: PlanOutput) -> None:
    from rich.console import Console

    from gpulet.cli import plan_drawn, plan_shown

    if output is PlanOutput.json:
        _print_json(plan_shown.as_json(answer))
    elif output is PlanOutput.yaml:
        print(plan_shown.as_yaml(answer), end="")
    elif output is PlanOutput.svg:
        print(plan_drawn.svg(answer))
    elif output is PlanOutput.html:
        print(plan_drawn.html(answer))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(plan_shown.as_tables(answer))


def top(
    once: Annotated[bool, typer.Option(help="Print the tables once.")] = False,
    output: Format = Output.table,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show models, shares, profiles and tuning as they are now, until interrupted."""
    from gpulet.cli.tables import snapshot
    from gpulet.cli.top import run

    if output is Output.json:
        _print_json(snapshot(_view(kubeconfig).world))
        return
    try:
        _answer(run(kubeconfig, once=once))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def explain(
    model: Annotated[str, typer.Argument(metavar="NAMESPACE/MODEL")],
    output: Format = Output.table,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say why a model has the shares it has, or why it has none."""
    from gpulet.cli.explain import UnknownModelError, facts, find_model, text

    world = _view(kubeconfig).world
    try:
        found = facts(world, find_model(world, model))
    except UnknownModelError as error:
        _fail(error)
    if output is Output.json:
        _print_json(found)
    else:
        print("\n".join(text(found)))


def map_(output: Format = Output.table, kubeconfig: Kubeconfig = None) -> None:
    """Draw who sits where: one bar a device."""
    from gpulet.cli.map import placed, text

    devices = placed(_view(kubeconfig).world)
    if output is Output.json:
        _print_json(devices)
    else:
        print("\n".join(text(devices)))


def node(
    name: Annotated[str | None, typer.Argument(metavar="NODE", help="Absent: every node with GPUs of ours.")] = None,
    output: Format = Output.table,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what is on a node: GPUs, shares, what of them is enforced, and what is wrong.

    Exit code 0: nothing is wrong; 2: something is.
    """
    from gpulet.cli import node as nodes

    try:
        part = _answer(nodes.read(kubeconfig))
        found = [nodes.facts(part, of) for of in part.named(name)]
    except nodes.UnknownNodeError as error:
        _fail(error)
    if output is Output.json:
        _print_json(found)
    else:
        print("\n".join(line for of in found for line in nodes.text(of)) or "no node has GPUs of Gpulet; gpulet doctor")
    raise typer.Exit(2 if any(of["wrong"] for of in found) else 0)


def doctor(
    name: Annotated[str | None, typer.Argument(metavar="NODE", help="Absent: every node with a part of ours.")] = None,
    output: Format = Output.table,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say why a node is not ready for shares, and what to do about each finding. Changes nothing.

    Exit code 0: all is in order; 2: it is not.
    """
    from dataclasses import asdict

    from gpulet.cli import doctor as doctors
    from gpulet.cli import node as nodes
    from gpulet.cli.live import policy_fault

    try:
        part, fault = _answer(nodes.read(kubeconfig)), _answer(policy_fault(kubeconfig))
        findings = [doctors.policy(fault), *doctors.diagnose(part, name)]
    except nodes.UnknownNodeError as error:
        _fail(error)
    if output is Output.json:
        _print_json([asdict(finding) for finding in findings])
    else:
        print("\n".join(doctors.text(findings)))
    raise typer.Exit(2 if any(finding.state == "problem" for finding in findings) else 0)


def bench(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Of models: http://host:8000/v2/models/NAME.")],
    rate: Annotated[list[float], typer.Option(help="Requests per second: one for all URLs, or one for each.")],
    seconds: Annotated[float, typer.Option(help="How long requests are sent; at most 3600.")],
    shape: Annotated[str | None, typer.Option(help="Of each input, such as 1,3,32,32; else its own.")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and of what is sent.")] = 0,
    allow: Annotated[list[str] | None, typer.Option(metavar="CIDR", help="A private range that may be loaded.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until a request counts as failed.")] = 30.0,
    output: Format = Output.table,
) -> None:
    """Send a bounded open-loop load to served models and report what came back.

    Targets: loopback, Services of the cluster, and private ranges given with --allow. Exit code 2: requests failed.
    """
    from gpulet.cli import bench as load

    try:
        rates = rate * len(urls) if len(rate) == 1 else rate
        if len(rates) != len(urls):
            raise load.BenchError(f"--rate: {len(rate)} rates for {len(urls)} URLs: give one for all or one for each")
        sizes = tuple(int(d) for d in shape.split(",")) if shape else None
        targets = [load.Target(url.rstrip("/"), r, sizes) for url, r in zip(urls, rates, strict=True)]
        allowed = [load.private_network(text) for text in allow or ()]
        tallies = asyncio.run(
            load.run(targets, seconds=seconds, seed=seed, allowed=allowed, timeout_s=timeout, progress=_load_progress)
        )
    except ValueError as error:
        _fail(error)
    reports = [load.report(t, tally, seconds=seconds) for t, tally in zip(targets, tallies, strict=True)]
    if output is Output.json:
        _print_json(reports)
    else:
        for found in reports:
            print(_load_line(found))
    raise typer.Exit(2 if any(found["errors"] for found in reports) else 0)


def _load_progress(tallies: list[Any], elapsed_s: float) -> None:
    sent, errors = sum(t.sent for t in tallies), sum(sum(t.errors.values()) for t in tallies)
    print(f"{elapsed_s:4.0f} s: {sent} requests sent, {errors} failed", file=sys.stderr, flush=True)


def _load_line(found: dict[str, Any]) -> str:
    latency = found["latencyMilliseconds"]
    kinds = f" ({', '.join(f'{kind} {count}' for kind, count in found['errorKinds'].items())})"
    kinds = kinds if found["errorKinds"] else ""
    return (
        f"{found['model']}: {found['answered']} answered, {found['errors']} failed{kinds}, "
        f"{found['throughputPerSecond']}/s, mean {latency['mean']} ms, p50 {latency['p50']} ms, "
        f"p99 {latency['p99']} ms, max {latency['max']} ms"
    )


def _view(kubeconfig: Path | None, *, follows_policy: bool = True) -> "View":
    """The cluster as it is; a policy that cannot be read is a warning, for what exists can be told without it."""
    from gpulet.cli.live import view

    seen = _answer(view(kubeconfig))
    if seen.policy_fault is not None and follows_policy:
        print(
            f"warning: {seen.policy_fault}\nwarning: the controller keeps the last policy that it could read; "
            "this is answered with the defaults. gpulet doctor has the remedy",
            file=sys.stderr,
        )
    return seen


def _answer(work: Coroutine[Any, Any, T]) -> T:
    """Run it; a cluster that cannot be asked is one line and exit code 1."""
    from gpulet.kube.errors import KubeError

    try:
        return asyncio.run(work)
    except KubeError as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(1)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
