"""The JSON that every verb prints: its names are promised."""

from __future__ import annotations

import json

from samples import diagnosis, finding

from nearpeak.report.document import diagnosis_document, to_json


def test_the_names_that_others_rely_on() -> None:
    document = json.loads(to_json(diagnosis_document(diagnosis(), source="my-run")))
    assert (document["schema"], document["source"], document["steps"]) == (1, "my-run", 240)
    assert abs(document["breakdown"]["idle"]["input"] - 43) < 0.01
    assert document["ranks"] == [document["breakdown"]]
    first = document["findings"][0]
    assert {"kind", "title", "evidence", "remedy", "gain", "verify", "severity", "predicted_step_ms"} == set(first)
    assert first["gain"] == {"low": 0.6 * 0.31, "likely": 0.31, "high": 1.2 * 0.31}
    assert first["evidence"][0] == {"name": "wait_ms", "value": 91.2, "source": "steps 10 to 249 of the recording"}
    assert [each["kind"] for each in document["folded"]] == ["logging"]


def test_what_is_unknown_is_null() -> None:
    document = json.loads(to_json(diagnosis_document(diagnosis(findings=(finding(likely=None),)), cost=float("nan"))))
    assert document["findings"][0]["gain"] is None
    assert document["findings"][0]["predicted_step_ms"] is None
    assert document["cost"] is None
