from __future__ import annotations

from adjoint.store.explaining import differences, nearest


def test_equal_facts_do_not_differ() -> None:
    assert differences({"a": "1"}, {"a": "1"}) == []


def test_each_fact_that_differs() -> None:
    assert differences({"torch": "2.13", "x": "1"}, {"torch": "2.11", "x": "1"}) == [
        "torch is 2.13, and was 2.11"
    ]
    assert differences({"passes": "a" * 100}, {"passes": "b" * 100}) == ["passes differ"]
    assert differences({"graph": "a" * 100}, {"graph": "b" * 100}) == ["graph differs"]
    assert differences({}, {"driver": "1"}) == ["driver was 1"]
    assert differences({"driver": "1"}, {}) == ["driver was unknown"]


def test_features_of_the_cpu() -> None:
    now, then = "+avx2,-avx512f,+fma", "+avx2,+avx512f,-fma"
    assert differences({"features": now}, {"features": then}) == [
        "the CPU has no avx512f",
        "the CPU has fma",
    ]
    assert differences({"features": "+a,-b"}, {"features": "+a"}) == [
        "the CPU is described otherwise"
    ]


def test_the_nearest_explains() -> None:
    wanted = {"cpu": "a", "torch": "2", "passes": "x"}
    kept = [{"cpu": "b", "torch": "1", "passes": "x"}, {"cpu": "a", "torch": "1", "passes": "x"}]
    assert nearest(wanted, kept) == ["torch is 2, and was 1"]
    assert nearest(wanted, []) == []
