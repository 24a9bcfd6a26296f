"""When an observed figure is worth a write."""

from gpulet.status.figures import compact, settle

OLD = {
    "observedGeneration": 1,
    "rate": {"planned": 10.0, "observed": 9.0},
    "latency": {"observedMeanMilliseconds": 5.0},
}


def changed(observed: float) -> dict[str, object]:
    return OLD | {"rate": {"planned": 10.0, "observed": observed}}


def test_a_wobble_is_not_written() -> None:
    assert settle(OLD, changed(9.5), seconds_since_write=1000) == OLD


def test_a_tenth_is_written_at_most_every_thirty_seconds() -> None:
    assert settle(OLD, changed(12.0), seconds_since_write=29) == OLD
    assert settle(OLD, changed(12.0), seconds_since_write=30) == changed(12.0)


def test_anything_else_is_written_at_once_with_the_figures_of_the_moment() -> None:
    wanted = changed(9.5) | {"observedGeneration": 2}
    assert settle(OLD, wanted, seconds_since_write=0) == wanted


def test_figures_that_come_or_go_count_as_moved() -> None:
    without = {"observedGeneration": 1, "rate": {"planned": 10.0}}
    assert settle(OLD, without, seconds_since_write=60) == without
    assert settle(without, OLD, seconds_since_write=5) == without


def test_an_object_without_fields_is_left_out() -> None:
    assert compact({"latency": {}, "rate": {"planned": 1}, "gpulets": []}) == {"rate": {"planned": 1}, "gpulets": []}


def planned(rate: float, reason: str = "Fits", message: str = "40 %: {:.4g} of 80 requests/s") -> dict[str, object]:
    condition = {"type": "Planned", "status": "True", "reason": reason, "message": message.format(rate)}
    return OLD | {"rate": {"planned": rate, "observed": 9.0}, "conditions": [condition]}


def test_the_planned_rate_and_the_words_that_name_it_are_figures_too() -> None:
    assert settle(planned(10), planned(10.8), seconds_since_write=1000) == planned(10)
    assert settle(planned(10), planned(12), seconds_since_write=29) == planned(10)
    assert settle(planned(10), planned(12), seconds_since_write=30) == planned(12)


def test_other_words_or_another_reason_are_news() -> None:
    for new in (planned(10, "Moved"), planned(10, message="60 %: {:.4g} requests/s, which the scheduler moved")):
        assert settle(planned(10), new, seconds_since_write=0) == new


def test_numbers_of_other_conditions_are_news() -> None:
    def starting(ready: int) -> dict[str, object]:
        return planned(10, "Starting", f"{ready} of 3 replicas ready")

    assert settle(starting(1), starting(2), seconds_since_write=0) == starting(2)
