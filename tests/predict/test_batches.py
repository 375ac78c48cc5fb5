"""Inputs of models of transformers: which are tried, and that images and sounds get where they belong."""

from __future__ import annotations

import importlib.util
import json
from typing import Any, TypeGuard

import pytest

from nearpeak.predict.capture import capture_all
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

pytest.importorskip("torch.utils.backend_registration", reason="needs torch")
from nearpeak.predict.pretend.batches import Inputs

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 200}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seeing": (
        {
            "model_type": "llava",
            "vision_config": {**TEXT, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 7},
            "text_config": {**TEXT, "model_type": "llama", "num_key_value_heads": 2},
            "vision_feature_layer": -1,
            "image_token_index": 150,
        },
        {"task": "image-text-to-text", "sequence": 10},
    ),
    "hearing": (
        {
            **TEXT, "model_type": "wav2vec2", "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 8],
            "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
        },
        {"task": "ctc"},
    ),
    "ending": (
        {
            "model_type": "bart", "d_model": 32, "vocab_size": 200, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        },
        {"task": "sequence-classification", "sequence": 10},
    ),
}  # fmt: skip
"""Name → (config.json, settings of the request)"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepTrace]:
    folder = tmp_path_factory.mktemp("configurations")
    requests = []
    for name, (config, settings) in CONFIGURATIONS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        requests.append(CaptureRequest(model=str(folder / name), batch=3, **settings))
    results = dict(zip(CONFIGURATIONS, capture_all(requests), strict=True))
    return {name: result for name, result in results.items() if _ran(result)}


def _ran(result: Any) -> TypeGuard[StepTrace]:
    assert isinstance(result, StepTrace), result
    return True


def test_images_go_to_the_vision_tower_and_take_the_places_it_needs(traces: dict[str, StepTrace]) -> None:
    trace = traces["seeing"]
    assert not trace.risks
    assert any("vision_tower" in each.module and each.phase == "backward" for each in trace.operators)
    embedded = next(each for each in trace.operators if each.name == "embedding" and "embed_tokens" in each.module)
    tokens = 3 * (10 + 16)  # 4 x 4 patches before the text
    assert trace.allocations[embedded.new[0] - 1].bytes == tokens * 32 * 4


def test_sounds_train_with_ctc(traces: dict[str, StepTrace]) -> None:
    trace = traces["hearing"]
    assert {"_ctc_loss.Tensor", "_ctc_loss_backward.Tensor"} <= {each.name for each in trace.operators}
    assert any(risk.startswith("CTC loss") for risk in trace.risks)


def test_each_text_ends_once(traces: dict[str, StepTrace]) -> None:
    """The model looks for the ends of its texts, and raises where they differ in number."""
    assert not traces["ending"].risks


def test_what_a_model_says_of_its_places_is_learned_once() -> None:
    inputs = Inputs(layouts=2)
    miscounted = ValueError("Image features and image tokens do not match, tokens: 0, features: 512")
    assert inputs.learned_from(miscounted, batch=2)
    assert (inputs.layout, inputs.placeholders) == (0, 256)
    assert inputs.learned_from(miscounted, batch=2)
    assert (inputs.layout, inputs.placeholders) == (1, 0)
    assert not inputs.learned_from(RuntimeError("no such shape"), batch=2)
