"""The cost model recovers what made its probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import SettingError
from nearpeak.train.cost import CostModel, fit_cost, probe_shapes

SHAPES = [(1, 8), (8, 8), (1, 40), (8, 40), (1, 128), (8, 128), (1, 512), (4, 512)]


@given(launch=st.floats(0.1, 50), token=st.floats(1e-3, 1), square=st.floats(0, 1e-3))
def test_exact_probes_are_recovered(launch: float, token: float, square: float):
    truth = CostModel(launch, token, square)
    fit = fit_cost([(n, length, truth.micro_batch_ms(n, length)) for n, length in SHAPES])
    assert fit.median_error < 1e-6
    for n, length in ((3, 20), (16, 64), (2, 400)):
        assert fit.model.micro_batch_ms(n, length) == pytest.approx(truth.micro_batch_ms(n, length), rel=1e-4)


def test_no_term_is_negative():
    fit = fit_cost([(1, 10, 10.0), (1, 20, 10.0), (2, 10, 9.0), (4, 20, 9.0)])
    assert min(fit.model.launch_ms, fit.model.token_ms, fit.model.square_ms) >= 0


def test_two_probes_are_too_few():
    with pytest.raises(SettingError, match="2 probes cannot determine 3"):
        fit_cost([(1, 10, 1.0), (2, 10, 1.0)])


def test_probe_shapes_span_the_window_within_memory():
    shapes = probe_shapes([5, 9, 30, 100], max_tokens=120)
    assert {length for _, length in shapes} >= {5, 100}
    assert all(n * length <= 120 for n, length in shapes)
