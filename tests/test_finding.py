from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import SettingError
from nearpeak.finding import KINDS, SEVERITIES, Evidence, Finding, ranked
from nearpeak.forecast import Interval


def make_finding(**changes: Any) -> Finding:
    settings: dict[str, Any] = {
        "kind": "padding",
        "title": "80 % of the tokens are padding",
        "evidence": (Evidence("padded_share", 0.8, "steps 0 to 99 of the recording"),),
        "severity": "warning",
        "remedy": "Leave micro_batching on auto.",
        "gain": Interval(0.5, 0.7, 0.8),
        "verify": "padded_tokens of a step is close to its tokens.",
    }
    return Finding(**(settings | changes))


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(SEVERITIES), st.none() | st.just(Interval(-0.1, 0, 1)))
def test_finding_survives_json(kind: str, severity: str, gain: Interval | None) -> None:
    finding = make_finding(kind=kind, severity=severity, gain=gain)
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "slow"}, "kind='slow'.*must be one of input"),
        ({"severity": "bad"}, "info, warning, critical"),
        ({"evidence": ()}, "evidence"),
        ({"gain": Interval(0.5, 0.9, 1.2)}, "no more than all"),
        ({"remedy": " "}, "remedy is empty"),
    ],
)
def test_finding_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_finding(**changes)


def test_ranked_puts_severity_before_gain_and_unknown_gain_last() -> None:
    small = make_finding(title="small", gain=Interval(0, 0.1, 0.2))
    unknown = make_finding(title="unknown", gain=None)
    big = make_finding(title="big")
    fault = make_finding(title="fault", kind="device_fault", severity="critical", gain=None)
    assert [f.title for f in ranked([small, unknown, fault, big])] == ["fault", "big", "small", "unknown"]
