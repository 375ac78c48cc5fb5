from __future__ import annotations

from fuzz import run


def test_damaged_logs_end_well_or_with_an_error_of_ours() -> None:
    endings = run(250)
    assert set(endings) <= {"read", "DataError"}
    assert endings["read"] > 100 and sum(endings.values()) == 250
