"""What Triton exports, read as rates, means and percentiles."""

import pytest

from gpulet.metrics.exported import Exported
from gpulet.metrics.triton import Scrape, parse, window

TEXT = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} 100
nv_inference_request_success{model="ab",version="1"} 7
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{model="a",version="1"} 500000
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="a",version="1"} 100
nv_inference_request_summary_us_sum{model="a",version="1"} 500000
nv_inference_request_summary_us{model="a",version="1",quantile="0.5"} 4000
nv_inference_request_summary_us{model="a",version="1",quantile="0.99"} 9000
"""


def test_only_the_named_model_is_read() -> None:
    """Names are compared whole: a is not ab (failure case E10's mistake)."""
    scrape = parse(TEXT, "a", at_s=1.0)
    assert (scrape.requests, scrape.duration_us) == (100, 500000)
    assert scrape.quantiles_us == ((0.5, 4000), (0.99, 9000))
    assert parse(TEXT, "ab", at_s=1.0).requests == 7
    assert parse(TEXT, "nobody", at_s=1.0).requests == 0


def test_a_window_is_the_difference_of_two_scrapes() -> None:
    first = Scrape(at_s=0, requests=100, duration_us=500_000)
    last = Scrape(at_s=10, requests=150, duration_us=900_000, quantiles_us=((0.99, 9000),))
    seen = window(first, last, quantile=0.99)
    assert (seen.requests, seen.seconds) == (50, 10.0)
    assert seen.mean_ms == pytest.approx(8.0)
    assert seen.percentile_ms == pytest.approx(9.0)


def test_a_restarted_server_does_not_give_negative_figures() -> None:
    """Failure case B14."""
    seen = window(Scrape(at_s=0, requests=100), Scrape(at_s=10, requests=20, duration_us=40_000), quantile=0.99)
    assert seen.requests == 20 and seen.seconds == 10.0


def test_without_requests_there_is_no_latency() -> None:
    last = Scrape(at_s=10, requests=100, quantiles_us=((0.99, 9000),))
    seen = window(Scrape(at_s=0, requests=100), last, quantile=0.99)
    assert (seen.requests, seen.mean_ms, seen.percentile_ms) == (0, None, None)


def test_a_series_goes_with_its_object() -> None:
    """Failure case J5."""
    exported = Exported()
    exported.shares({("ns", "g1", "n", "GPU-1"): 40, ("ns", "g2", "n", "GPU-1"): 30})
    exported.shares({("ns", "g2", "n", "GPU-1"): 30})
    exported.objectives({("ns", "m"): True})
    exported.objectives({})
    text = exported.text().decode()
    assert 'gpulet="g2"' in text and 'gpulet="g1"' not in text
    assert 'model="m"' not in text
