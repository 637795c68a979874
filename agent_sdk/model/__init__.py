"""Reads ONNX: from a file, bytes or a ModelProto to the static graph that is planned, and cuts pieces out of it."""

from agent_sdk.errors import ModelError
from agent_sdk.model.content import Content, Source
from agent_sdk.model.model import (
    Model,
    Network,
    bare_name,
    extract,
    located,
    pre_softmax_outputs,
    read_model,
    read_network,
)
from agent_sdk.model.ports import Port
from agent_sdk.model.shapes import Shapes
