"""``hope-agent prepare``: plans made ahead, so that later starts find them."""

from typing import Final

import click

from agent_sdk.cli.options import Given, loads_a_network

EXAMPLES: Final = """\b
examples:
  hope-agent prepare net.onnx
  hope-agent prepare detector.onnx --shape image=1,3,640,640 --shape image=1,3,1280,1280
"""


@click.command(epilog=EXAMPLES)
@loads_a_network
def prepare(given: Given) -> int:
    """Measure and plan ahead, at one set of input shapes or several: an input named again begins another set.

    What a further set does not name stays as in the one before.
    """
    first, *others = given.shape_sets
    with given.loaded(all_rivals=False, shapes=first) as (agent, session):
        click.echo(f"{_named(first)}: {session.plans.said()}")
        for shapes in others:
            agent.progress.phase(f"preparing {_named(shapes)}")
            click.echo(f"{_named(shapes)}: {session.prepare(shapes).said()}")
    return 0


def _named(shapes: dict[str, tuple[int, ...]]) -> str:
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()) or "the file's own shapes"
