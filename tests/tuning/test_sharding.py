"""Every client computes the same shards, and nobody gets all the work."""

from hypothesis import given
from hypothesis import strategies as st

from gpulet.tuning.sharding import Work, allot, in_order, shards

works_of = st.lists(st.floats(min_value=2000, max_value=1e9), min_size=1, max_size=40).map(
    lambda flops: [Work(f"op{i}", f, i) for i, f in enumerate(flops)]
)


@given(works_of, st.integers(min_value=1, max_value=500))
def test_the_allotment_is_the_budget(works: list[Work], trials: int) -> None:
    given_ = allot(works, trials)
    assert sum(given_.values()) == trials
    assert set(given_) == {w.name for w in works}


@given(works_of, st.integers(min_value=1, max_value=500), st.integers(min_value=1, max_value=6))
def test_each_operator_has_one_client_and_no_client_has_more_than_its_part_and_one_operator(
    works: list[Work], trials: int, clients: int
) -> None:
    given_ = allot(works, trials)
    parts = shards(works, given_, clients)
    assert sorted(w.name for part in parts for w in part) == sorted(w.name for w in works)
    heaviest = max(given_.values())
    for part in parts:
        assert sum(given_[w.name] for w in part) <= trials / clients + heaviest


@given(works_of, st.randoms(use_true_random=False))
def test_the_order_of_extraction_does_not_matter(works: list[Work], random: object) -> None:
    shuffled = sorted(works, key=lambda w: hash((w.name, str(random))))
    assert [w.name for w in in_order(shuffled)] == [w.name for w in in_order(works)]


def test_operators_without_work_get_no_trial() -> None:
    works = [Work("reshape", 0), Work("conv", 1e6)]
    assert [w.name for w in in_order(works)] == ["conv"]
