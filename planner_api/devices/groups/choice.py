"""Which devices a group, or a stage of a release, takes: the same ones on every replica, without a list of them."""

import hashlib
from collections.abc import Mapping
from typing import Any

from hope_schema import GroupSelector


def selector_of(stored: Mapping[str, Any]) -> GroupSelector:
    """What chooses devices, from the columns of a group, or as a release keeps it."""
    return GroupSelector(socs=tuple(stored["socs"]), labels=stored["labels"], share=stored["share"])


def position(device_id: str, salt: str) -> float:
    """Where a device stands between 0 and 1: evenly spread, the same for ever, and independent for every salt.

    So who is in the first per cent of one release is not in that of the next.
    """
    hashed = hashlib.blake2b(f"{salt}\n{device_id}".encode(), digest_size=8)
    return int.from_bytes(hashed.digest(), "big") / 2**64


def within(share: float, device_id: str, salt: str) -> bool:
    """Whether a device is in the first part of them, so large a share."""
    return share >= 1.0 or position(device_id, salt) < share


def takes(selector: GroupSelector, salt: str, device_id: str, soc: str, labels: Mapping[str, str]) -> bool:
    """Whether a group takes a device; ``salt`` is the group's name."""
    if selector.socs and soc not in selector.socs:
        return False
    if any(labels.get(key) != value for key, value in selector.labels.items()):
        return False
    return within(selector.share, device_id, salt)
