"""What already holds costs no request."""

from gpulet.kube.difference import holds


def test_defaults_of_the_server_are_no_difference() -> None:
    intent = {"spec": {"ports": [{"name": "http", "port": 80}], "selector": {"a": "b"}}}
    current = {
        "spec": {
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}],
            "selector": {"a": "b"},
            "clusterIP": "10.0.0.1",
        },
        "status": {},
    }
    assert holds(current, intent)


def test_a_changed_missing_or_additional_item_is_a_difference() -> None:
    intent = {"ports": [{"name": "http", "port": 80}]}
    assert not holds({"ports": [{"name": "http", "port": 81}]}, intent)
    assert not holds({"ports": []}, intent)
    assert not holds({"ports": [{"name": "http", "port": 80}, {"name": "x", "port": 1}]}, intent)
    assert not holds({}, intent)


def test_the_order_of_named_items_does_not_matter() -> None:
    a, b = {"name": "a", "value": "1"}, {"name": "b", "value": "2"}
    assert holds({"env": [b, a]}, {"env": [a, b]})
    assert not holds({"args": ["x", "y"]}, {"args": ["y", "x"]})


def test_items_with_the_same_key_are_compared_one_by_one() -> None:
    """Two tolerations of one taint key, as users write them, hold once they are there."""
    intent = [{"key": "gpu", "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoExecute"}]
    current = [item | {"operator": "Exists"} for item in intent]
    assert holds(current, intent)
    assert not holds(current[:1] * 2, intent)


def test_an_empty_map_that_the_server_did_not_store_holds() -> None:
    assert holds({"metadata": {}}, {"metadata": {"labels": {}, "finalizers": []}})
    assert not holds({"metadata": {}}, {"metadata": {"labels": {"a": ""}}})
