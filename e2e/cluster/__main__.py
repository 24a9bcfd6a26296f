"""The cluster's verbs: python -m e2e.cluster up|down|status|kubeconfig|images|load|restart|exec."""

import argparse
import json
import os
from collections.abc import Callable

from e2e.cluster import images, local, node
from e2e.cluster.commands import say
from e2e.cluster.providers import choose


def main() -> None:
    """Parse the command line and do what it asks; errors are one line that says what to do."""
    arguments = _parser().parse_args()
    if os.geteuid() != 0:
        raise SystemExit("the local cluster makes network namespaces and cgroups: run it as root")
    try:
        arguments.verb(arguments)
    except (RuntimeError, TimeoutError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


def _up(arguments: argparse.Namespace) -> None:
    print(choose(arguments.name).up(say))


def _down(arguments: argparse.Namespace) -> None:
    choose(arguments.name).down(say)


def _status(arguments: argparse.Namespace) -> None:
    cluster = local.existing(arguments.name)
    facts = {
        "name": cluster.name,
        "slot": cluster.slot,
        "server": cluster.server,
        "kubeconfig": str(cluster.kubeconfig),
        "auditLog": str(cluster.audit_log),
        "logs": str(cluster.logs),
        "sharedVolumes": str(cluster.shared),
        "complete": local.complete(cluster),
        "processes": local.processes(cluster),
        "nodes": {
            of.name: {"address": of.address, "folder": str(of.folder), "netns": of.netns} for of in cluster.nodes
        },
    }
    if arguments.output == "json":
        print(json.dumps(facts, indent=2))
        return
    for name, pid in local.processes(cluster).items():
        print(f"{name:28} {'not running' if pid is None else pid}")
    print(f"{'kubeconfig':28} {cluster.kubeconfig}")
    print(f"{'audit log':28} {cluster.audit_log}")


def _kubeconfig(arguments: argparse.Namespace) -> None:
    print(choose(arguments.name).kubeconfig())


def _images(arguments: argparse.Namespace) -> None:
    for short in arguments.image or images.buildable():
        image = images.build(short, say)
        print(f"{image.name} {image.digest}")


def _load(arguments: argparse.Namespace) -> None:
    choose(arguments.name).load(arguments.image, say)


def _restart(arguments: argparse.Namespace) -> None:
    local.restart(local.existing(arguments.name), arguments.daemon, say)


def _exec(arguments: argparse.Namespace) -> None:
    cluster = local.existing(arguments.name)
    chosen = next((of for of in cluster.nodes if of.name == arguments.node), None)
    if chosen is None:
        raise SystemExit(f"{arguments.node}: no such node; there are {', '.join(of.name for of in cluster.nodes)}")
    command = [str(word) for word in node.inside(chosen, arguments.command)]
    os.execvp(command[0], command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, does: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.add_argument("--name", default="gpulet", help="which cluster (default: gpulet)")
        added.set_defaults(verb=does)
        return added

    verb("up", _up, "bring a cluster up, or complete or repair it; prints its kubeconfig")
    verb("down", _down, "remove everything of a cluster")
    status = verb("status", _status, "what runs, and where its files are")
    status.add_argument("-o", "--output", choices=["text", "json"], default="text")
    verb("kubeconfig", _kubeconfig, "print the path of the kubeconfig")
    built = verb("images", _images, "build the product's images from their Dockerfiles")
    built.add_argument("image", nargs="*", choices=[*images.NAMES, []], help="default: all that have a Dockerfile")
    loaded = verb("load", _load, "build images and import them on both nodes")
    loaded.add_argument("image", nargs="*", choices=[*images.NAMES, *images.FIXTURES, []], help="default: all")
    restarted = verb("restart", _restart, "end one daemon of a cluster and start it again")
    restarted.add_argument("daemon", help="such as node1-kubelet or kube-scheduler; status lists them")
    executed = verb("exec", _exec, "run a command in a node's namespaces")
    executed.add_argument("node")
    executed.add_argument("command", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    main()
