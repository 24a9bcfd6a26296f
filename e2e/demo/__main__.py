"""The demo's verbs: python -m e2e.demo run|down|summary [--name NAME]."""

import argparse
import asyncio
import json
import os
import sys

from rich.console import Console

from e2e.cluster.commands import say
from e2e.cluster.providers import choose
from e2e.demo import down, run, summary
from e2e.kubectl import Kubectl
from gpulet.cli.live import view


def main() -> None:
    """Exit code 0: done; 1: it could not be done, with one line that says why; 2: down left something behind."""
    arguments = _parser().parse_args()
    try:
        sys.exit(arguments.verb(arguments))
    except (RuntimeError, TimeoutError, OSError) as error:
        sys.exit(f"error: {error or type(error).__name__}")


def _run(arguments: argparse.Namespace) -> int:
    as_json = arguments.output == "json"
    found = run.run(arguments.name, _console(stderr=as_json))
    if as_json:
        print(json.dumps(found, indent=2))
    return 0


def _down(arguments: argparse.Namespace) -> int:
    return 0 if down.down(arguments.name, say) else 2


def _summary(arguments: argparse.Namespace) -> int:
    kubectl = Kubectl(choose(arguments.name).kubeconfig())
    found = run.facts(kubectl, asyncio.run(view(kubectl.kubeconfig)).world)
    if arguments.output == "json":
        print(json.dumps(found, indent=2))
    else:
        summary.show(found, _console())
    return 0


def _console(*, stderr: bool = False) -> Console:
    """Wide enough for the tables where nobody has a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() or os.environ.get("COLUMNS") else 160)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, does, text in (
        ("run", _run, "bring a cluster up, install Gpulet, serve models under load, tune one, say what happened"),
        ("down", _down, "delete what the demo made, check that nothing is left, remove the cluster"),
        ("summary", _summary, "say again what happened, from what the cluster holds now"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--name", default="gpulet", help="which cluster (default: gpulet)")
        verb.set_defaults(verb=does)
        if name != "down":
            verb.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser


if __name__ == "__main__":
    main()
