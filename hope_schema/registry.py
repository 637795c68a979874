"""Names for people: models with versions, labels and aliases, devices with labels, groups of devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from hope_schema.base import PRINTABLE, Contract, Count, Digest, Label, Share, VersionNumber

PLAIN = r"^[A-Za-z0-9][A-Za-z0-9._\-]*$"
PlainName = Annotated[str, Field(min_length=1, max_length=100, pattern=PLAIN)]
"""A model's, an alias's or a group's name: no ``:`` and no ``@``, which divide a reference."""
Reference = Annotated[
    str, Field(max_length=201, pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*([:@][A-Za-z0-9][A-Za-z0-9._\-]*)?$")
]
"""``classifier`` (its newest version), ``classifier:3``, or ``classifier@production``."""
Title = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
"""What people call something; shown as text, never as markup."""
Labels = Annotated[dict[Label, Label], Field(max_length=32, json_schema_extra={"additionalProperties": False})]
"""Key to value, e.g. ``{"region": "emea", "channel": "beta"}``."""


class NewModelVersion(Contract):
    """``POST /names/{name}/versions``: the next version of a model is this graph, which the planner knows already."""

    model_hash: Digest
    labels: Labels = {}


class ModelVersion(Contract):
    """One version of a named model, with the aliases that stand for it now."""

    name: PlainName
    version: VersionNumber
    model_hash: Digest
    labels: Labels
    aliases: tuple[PlainName, ...]
    created_at: AwareDatetime


class ModelVersionPage(Contract):
    """Versions, newest first; ``next`` is the ``before`` of the following page, null on the last."""

    versions: tuple[ModelVersion, ...]
    next: VersionNumber | None = None


class NamedModel(Contract):
    """A named model: its newest version, and which version each alias stands for."""

    name: PlainName
    newest: VersionNumber
    aliases: dict[PlainName, VersionNumber]
    created_at: AwareDatetime


class NamedModelPage(Contract):
    """Named models in the order of their names; ``next`` is the ``after`` of the following page."""

    names: tuple[NamedModel, ...]
    next: PlainName | None = None


class AliasTarget(Contract):
    """``PUT /names/{name}/aliases/{alias}``: the version it stands for from now on."""

    version: VersionNumber


class Labelled(Contract):
    """``PUT …/labels``: the labels from now on; those that are not named are gone."""

    labels: Labels


class DeviceDescription(Contract):
    """``PUT /devices/{device_id}/description``: what people call a device, and the labels that groups choose by."""

    name: Title | None = None
    labels: Labels = {}


class GroupSelector(Contract):
    """``PUT /groups/{name}``: the devices of these SoCs (none named: of all) that carry all of these labels.

    ``share`` takes only that part of them, by a stable hash of the device's id.
    """

    socs: Annotated[tuple[Label, ...], Field(max_length=1000)] = ()
    labels: Labels = {}
    share: Share = 1.0


class Group(GroupSelector):
    """A group. ``devices`` counts those that its SoCs and labels choose, before ``share``."""

    name: PlainName
    devices: Count
    created_at: AwareDatetime


class GroupPage(Contract):
    """Groups in the order of their names; ``next`` is the ``after`` of the following page."""

    groups: tuple[Group, ...]
    next: PlainName | None = None
