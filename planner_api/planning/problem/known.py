"""What a profile knows of the kinds of processors: looked up by a super-op's signature, measured before predicted."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from hope_schema import Profile, SuperOp, recipe_of


class Way(NamedTuple):
    """One way to execute a super-op on a kind of processor; unsupported where it takes None."""

    us: float | None
    share: float = 1.0
    in_parts: bool = False
    spread: float = 0.0


class KnownKind:
    """What a profile knows of one kind of processor.

    Attributes:
        rows: what was measured, by signature.
        recipes: what was measured of further recipes, by signature and number.
        predicted: what was predicted, by signature.
        fixed: by signature and axis: of an op's latency, what each of its parts takes however small it is.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Way] = {}
        self.recipes: dict[str, dict[int, Way]] = defaultdict(dict)
        self.predicted: dict[str, Way] = {}
        self.fixed: dict[tuple[str, int], float] = {}

    def way(self, op: SuperOp) -> Way | None:
        """The faster of the fused group and its parts, as measured, else as predicted; None where nothing is known."""
        return self._measured(op) or self.predicted.get(op.signature)

    def _measured(self, op: SuperOp) -> Way | None:
        whole = self.rows.get(op.signature)
        if len(op.ops) == 1:
            return whole
        parts = [self.rows.get(SuperOp(op.graph, (part,)).signature) for part in op.ops]
        if any(part is None or part.us is None for part in parts):
            return whole
        known = [part for part in parts if part is not None]
        us = sum(part.us for part in known if part.us is not None)
        if whole is not None and whole.us is not None and whole.us <= us:
            return whole
        return Way(us, max(part.share for part in known), True)


def known_kinds(profile: Profile) -> Mapping[str, KnownKind]:
    rows, guesses, parts = profile.latencies, profile.predicted, profile.parts
    shares = rows.share or (1.0,) * len(rows.us)
    known: dict[str, KnownKind] = defaultdict(KnownKind)
    for signature, kind, us, share in zip(rows.signature, rows.kind, rows.us, shares, strict=True):
        own, recipe = recipe_of(signature)
        if recipe is None:
            known[kind].rows[signature] = Way(us, share)
        else:
            known[kind].recipes[own][recipe] = Way(us, share)
    for signature, kind, us, spread_us in zip(
        guesses.signature, guesses.kind, guesses.us, guesses.spread_us, strict=True
    ):
        if us:
            known[kind].predicted[signature] = Way(us, spread=spread_us / us)
    for signature, kind, axis, fixed in zip(parts.signature, parts.kind, parts.axis, parts.fixed, strict=True):
        known[kind].fixed[signature, axis] = fixed
    return known
