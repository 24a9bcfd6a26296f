"""Import of what users measured with perf_analyzer."""

import pytest

from gpulet.profiling.perf_analyzer import CsvError, Measured, point_from_csv

# A run of perf_analyzer 2.60 --verbose-csv has more columns behind these; rows come in any order.
CSV = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,response wait
4,84.2,279,1604,33669,233,11731,18,1,46500,50000,52000,58000,9
1,69.2,225,2148,64,206,11781,19,0,13891,18795,19753,21018,9
"""
MEASURED = Measured(product="P", compute_percent=40, batch=8, memory_mebibytes=2048, mig="3g.40gb", instances=2)


def test_the_closed_loop_with_one_caller_becomes_a_point() -> None:
    point = point_from_csv(CSV, MEASURED)
    assert point.latency_microseconds.mean == 225 + 2148 + 64 + 206 + 11781 + 19 + 0
    assert (point.latency_microseconds.p50, point.latency_microseconds.p99) == (13891, 21018)
    assert point.throughput_per_second == 69.2
    assert (point.product, point.mig, point.compute_percent, point.batch, point.instances) == ("P", "3g.40gb", 40, 8, 2)
    assert point.memory_mebibytes == 2048


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "--concurrency-range 1"),
        (CSV.replace("\n1,", "\n2,"), "--concurrency-range 1"),
        (CSV.replace("p99 latency", "p98 latency"), "p99 latency"),
        (CSV.replace("\n1,69.2,", "\n1,0,"), "--measurement-interval"),
        (CSV.replace("\n1,69.2,", "\n1,many,"), "many"),
        ("a,b\n1,2\n", "--concurrency-range 1"),
    ],
)
def test_a_file_that_will_not_do_is_refused_with_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(CsvError, match=remedy):
        point_from_csv(text, MEASURED)
