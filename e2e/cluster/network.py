"""The cluster's network: a bridge on the machine, a network namespace a node, routes to pods and Services."""

import json
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.layout import Layout, Node


def ensure_network(cluster: Layout) -> None:
    """Make what is missing of bridge, namespaces, links and routes; the machine then reaches pods and ClusterIPs."""
    if not _link_exists(cluster.bridge):
        run(["ip", "link", "add", cluster.bridge, "type", "bridge"])
    run(["ip", "address", "replace", f"{cluster.host_address}/24", "dev", cluster.bridge])
    run(["ip", "link", "set", cluster.bridge, "up"])
    if _forwarding_is_dropped() and not succeeds(["iptables", "-C", *_forward_rule(cluster)]):
        run(["iptables", "-I", *_forward_rule(cluster)])
    for node in cluster.nodes:
        _ensure_node_link(node)
    for node in cluster.nodes:
        run(["ip", "route", "replace", node.pod_range, "via", node.address])
        for other in cluster.nodes:
            if other != node:
                run(["ip", "-n", node.netns, "route", "replace", other.pod_range, "via", other.address])
    # kube-proxy on any node knows every Service.
    run(["ip", "route", "replace", cluster.service_range, "via", cluster.nodes[0].address])


def _ensure_node_link(node: Node) -> None:
    if not Path("/run/netns", node.netns).exists():
        run(["ip", "netns", "add", node.netns])
    inside = ["ip", "-n", node.netns]
    if not _link_exists(node.veth):
        run(["ip", "link", "add", node.veth, "type", "veth", "peer", "name", "eth0", "netns", node.netns])
    run(["ip", "link", "set", node.veth, "master", node.cluster.bridge, "up"])
    run([*inside, "address", "replace", f"{node.address}/24", "dev", "eth0"])
    run([*inside, "link", "set", "eth0", "up"])
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "route", "replace", "default", "via", node.cluster.host_address])
    run(["nsenter", f"--net=/run/netns/{node.netns}", "sysctl", "-qw", "net.ipv4.ip_forward=1"])


def remove_network(cluster: Layout) -> None:
    """Remove all that ``ensure_network`` makes, whatever of it exists. Routes go with their bridge."""
    for node in cluster.nodes:
        # Explicitly, because another mount namespace may hold the network namespace a little longer.
        if _link_exists(node.veth):
            run(["ip", "link", "delete", node.veth])
        if Path("/run/netns", node.netns).exists():
            run(["ip", "netns", "delete", node.netns])
    if succeeds(["iptables", "-C", *_forward_rule(cluster)]):
        run(["iptables", "-D", *_forward_rule(cluster)])
    if _link_exists(cluster.bridge):
        run(["ip", "link", "delete", cluster.bridge])


def address_is_in_use(cluster: Layout) -> bool:
    """Whether the machine already has a route into this cluster's node range that is not this cluster's own."""
    routes = json.loads(run(["ip", "-json", "route", "show", "root", f"10.99.{cluster.slot}.0/24"]) or "[]")
    return any(route.get("dev") != cluster.bridge for route in routes)


def _link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _forwarding_is_dropped() -> bool:
    """Docker sets this policy, and frames between the bridge's ports pass the same chain."""
    return "-P FORWARD DROP" in run(["iptables", "-S", "FORWARD"])


def _forward_rule(cluster: Layout) -> list[str]:
    comment = ["-m", "comment", "--comment", f"gpulet local cluster {cluster.slot}"]
    return ["FORWARD", "-i", cluster.bridge, "-o", cluster.bridge, *comment, "-j", "ACCEPT"]
