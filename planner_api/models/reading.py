"""What is stored of a graph, made of its text. Pure, so that a large one can be read in a process of its own."""

import msgspec

from hope_schema import ModelGraph, merge
from hope_schema.hashing import digest
from planner_api.compression import zstd
from planner_api.models.figures import figures_of
from planner_api.prediction.features import features
from planner_api.web.shape import parse


class ReadGraph(msgspec.Struct, frozen=True):
    """A graph as it is kept (``db.tables.ModelRow``, ``SignatureRow``): what is searched by, the rest compressed."""

    hash: str
    name: str
    ops: int
    super_ops: int
    graph_zstd: bytes
    graph_digest: str
    figures_zstd: bytes
    signatures: dict[str, bytes]
    """Features of its ops, which have a table of their own."""


def read_graph(text: bytes | bytearray) -> ReadGraph:
    """Validate a graph and work out what is kept of it. Raises HttpError as ``parse`` does."""
    return describe(parse(text, ModelGraph))


def describe(graph: ModelGraph) -> ReadGraph:
    supers = merge(graph)
    return ReadGraph(
        hash=graph.model_hash,
        name=graph.name,
        ops=len(graph.ops),
        super_ops=len(supers),
        graph_zstd=zstd(graph.model_dump_json().encode()),
        graph_digest=_content_digest(graph),
        figures_zstd=zstd(figures_of(graph, supers).model_dump_json().encode()),
        signatures={op.signature: msgspec.json.encode(features(op)) for op in supers},
    )


def _content_digest(graph: ModelGraph) -> str:
    """Digest of everything but the name and the order of listing, independent of how ``model_hash`` is made."""
    content = graph.model_dump(mode="json", exclude={"name"})
    content["ops"].sort(key=lambda op: op["outputs"][0])
    content["tensors"].sort(key=lambda tensor: tensor["name"])
    return digest(content)
