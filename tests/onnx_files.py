"""Small ONNX policies, written by hand: with any metadata, and with weights in files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest


def save_onnx(
    path: Path,
    *,
    metadata: Mapping[str, str] | None = None,
    weights_file: str | None = None,
    value: float = 0.5,
    size: int = 16,
) -> Path:
    """Two actions, each the mean color times `value`. metadata: texts, JSON where `softaug export` writes JSON.

    weights_file: where the weights are said to be; the file is written if that is next to `path`.
    """
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    content = np.full((6, 2), value / 1000, np.float32).tobytes()
    weights = helper.make_tensor("weights", kinds.FLOAT, [6, 2], content, raw=True)
    if weights_file is not None:
        onnx.external_data_helper.set_external_data(weights, weights_file, length=len(content))
        weights.ClearField("raw_data")
        if Path(weights_file).name == weights_file:
            (path.parent / weights_file).write_bytes(content)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["float"], to=kinds.FLOAT),
        helper.make_node("GlobalAveragePool", ["float"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["action"]),
    ]
    pixels = helper.make_tensor_value_info("pixels", kinds.UINT8, [1, 6, size, size])
    action = helper.make_tensor_value_info("action", kinds.FLOAT, [1, 2])
    graph = helper.make_graph(nodes, "policy", [pixels], [action], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, dict(metadata or {}))
    path.write_bytes(model.SerializeToString())
    return path
