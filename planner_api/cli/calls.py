"""What an admin may type, each a call on the API: data, no code."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def pairs(text: str) -> dict[str, str]:
    """``key=value,key=value``. Raises BadParameter for anything else."""
    found = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
    if not all(found.keys()) or not all(found.values()):
        raise click.BadParameter(f"'{text}' is not key=value,key=value")
    return found


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[float]:
    """``0.1,0.5``. Raises BadParameter for anything else."""
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise click.BadParameter(f"'{text}' is not numbers such as 0.1,0.5") from None


def lifetime(text: str) -> float:
    """``90s``, ``15m``, ``12h`` or ``30d``, in seconds. Raises BadParameter for anything else."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"'{text}' is not a lifetime; write e.g. 12h or 30d")
    return float(int(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True)
class Option:
    """An option of a call, sent under ``name``; ``flag`` is how it is typed where that is another word.

    ``read`` makes the value of its text, or is a type of click's; ``bool`` makes a switch of it.
    """

    name: str
    help: str
    read: Callable[[str], Any] | click.ParamType[Any] = str
    flag: str = ""

    @property
    def typed(self) -> str:
        return f"--{(self.flag or self.name).replace('_', '-')}"


@dataclass(frozen=True)
class Call:
    """One command, ``hope-planner GROUP VERB``.

    ``path`` names its arguments in braces. ``body`` options and ``arguments`` go into the request's body, ``query``
    options and ``asked`` arguments behind the path. ``rows`` names the list that a page holds, ``columns`` what people
    see of each entry (dotted where nested), ``empty`` what is said where it holds none, ``head`` what of the answer
    beside them; an answer without rows is shown field by field, those in ``head`` or all. ``cursor`` is what a page's
    ``next`` is handed back as, where there are pages. ``only`` is the one field that is printed, for ``$(...)``;
    ``whole`` prints the answer as JSON in any case.
    ``watched`` is the field of an answer that is asked for until it has one of the values ``until``, of which the first
    is success.
    """

    group: str
    verb: str
    help: str
    method: str
    path: str
    arguments: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    query: tuple[Option, ...] = ()
    body: tuple[Option, ...] = ()
    rows: str = ""
    columns: tuple[str, ...] = ()
    empty: str = ""
    head: tuple[str, ...] = ()
    cursor: str = ""
    only: str = ""
    whole: bool = False
    watched: str = ""
    until: tuple[Any, ...] = ()


_SOC = Option("soc", "of this SoC alone")
_LABEL = Option("label", "a note to know it by")
_EXPIRES = Option("lifetime_s", "how long it is valid, e.g. 12h or 30d (default: for ever)", lifetime, "expires")
_SELECTOR = (
    Option("socs", "these SoCs, comma-separated", names),
    Option("labels", "devices with these labels, key=value,key=value", pairs),
    Option("share", "this part of them, 0 to 1, by stable hash", float),
)
_RELEASE = ("state", "stage", "share", "reported", "wanted", "evidence", "reason")

CALLS = (
    Call("fleet", "show", "counts, hit rate, median drift.\n\nPlanning ahead leaves out SoCs that are unconfirmed: "
         "too few devices uploaded for them. Provisional plans are first ones; better ones follow", "GET", "/fleet"),
    Call("fleet", "models", "coverage, worst gap and hit rate per model.\n\nCoverage is the share of all pairs of SoC "
         "and frequency that have a finished plan; SoCs that are unconfirmed do not count", "GET", "/fleet/models",
         rows="models", columns=("name", "model_hash", "plans", "coverage", "worst_gap", "hit_rate"), cursor="offset"),
    Call("profiles", "list", "what is known of each SoC", "GET", "/fleet/profiles",
         rows="profiles", columns=("soc", "frequency", "version", "latencies", "transfers", "devices", "established",
                                   "updated_at"), cursor="offset"),
    Call("profiles", "export", "print a profile as JSON, for `profiles import`", "GET", "/profiles/{soc}/{frequency}",
         whole=True),
    Call("profiles", "who", "who had a part in a profile, and how much nobody else says", "GET",
         "/fleet/profiles/contributions", asked=("soc", "frequency"), cursor="after", rows="contributions",
         columns=("device_id", "figures", "alone", "uploads", "last_at", "unused"), empty="nobody had a part in it"),
    Call("profiles", "forget", "take back what a device, or everybody, said in a profile", "DELETE",
         "/fleet/profiles/contributions", asked=("soc", "frequency"),
         query=(Option("device_id", "this device alone", flag="device"),)),
    Call("profiles", "establish", "vouch for a SoC, so that planning ahead counts it", "PUT", "/fleet/socs/{soc}"),
    Call("models", "list", "models by name", "GET", "/names", cursor="after",
         rows="names", columns=("name", "newest", "aliases"), empty="no model has a name"),
    Call("models", "show", "a model's versions", "GET", "/names/{name}/versions", cursor="before",
         rows="versions", columns=("version", "model_hash", "aliases", "labels", "created_at")),
    Call("models", "add", "make a graph the next version of a name", "POST", "/names/{name}/versions", ("model_hash",),
         body=(Option("labels", "key=value,key=value", pairs),)),
    Call("models", "alias", "let an alias stand for a version", "PUT", "/names/{name}/aliases/{alias}", ("version",)),
    Call("models", "plan", "plan a model for every SoC ahead", "POST", "/models/{model_hash}/plans"),
    Call("models", "progress", "follow a planning ahead until all is planned", "GET", "/fanouts/{fanout_id}",
         columns=("total", "queued", "solving", "done", "failed"), watched="finished", until=(True,)),
    Call("models", "rollout", "how new plan versions go out: at_once, held or staged", "PUT",
         "/models/{model_hash}/rollout", ("rollout",)),
    Call("plans", "list", "plans with gap, drift and cause", "GET", "/fleet/plans", cursor="after", rows="plans",
         query=(Option("model_hash", "of this model alone"), _SOC, Option("status", "queued, solving, done or failed")),
         columns=("plan_id", "name", "soc", "frequency", "status", "version", "makespan_us", "gap", "drift", "error")),
    Call("plans", "show", "a plan", "GET", "/plans/{plan_id}", query=(Option("version", "this one", int),),
         head=("plan_id", "version", "provisional", "created_at", "solve_us", "plan.soc", "plan.frequency",
               "plan.processors", "plan.steps", "plan.transfers", "plan.makespan_us", "plan.lower_bound_us", "plan.gap",
               "plan.method", "plan.bound_method", "plan.notes")),
    Call("plans", "versions", "every version that is kept", "GET", "/plans/{plan_id}/versions", rows="versions",
         columns=("version", "served", "makespan_us", "gap", "profile_version", "found_by", "created_at")),
    Call("plans", "diff", "two versions beside each other, or two plans", "GET", "/plans/{plan_id}/diff",
         query=(Option("before", "a version", int), Option("after", "a version", int), Option("other", "another plan")),
         head=("before.version", "before.makespan_us", "before.results.measured_us", "after.version",
               "after.makespan_us", "after.results.measured_us", "unmoved"),
         rows="moved", columns=("ops", "before", "after", "before_us", "after_us", "cause"), empty="nothing moved"),
    Call("releases", "list", "releases, newest first", "GET", "/releases", cursor="before", rows="releases",
         columns=("release_id", "model", "state", "stage", "share", "reported", "wanted", "reason")),
    Call("releases", "show", "how one goes", "GET", "/releases/{release_id}"),
    Call("releases", "watch", "follow one until it has ended", "GET", "/releases/{release_id}",
         columns=_RELEASE, watched="state", until=("done", "rolled_back")),
    Call("releases", "parts", "how it goes on each kind of device", "GET", "/releases/{release_id}/parts",
         cursor="after", rows="parts",
         columns=("soc", "plan_id", "before", "after", "reported", "latency.worse", "latency.better", "answers.worse")),
    Call("releases", "begin", "let new plans, or a version, go out in stages", "POST",
         "/releases", ("model",),
         body=(
             Option("alias", "this alias comes to stand for the version"),
             Option("group", "to these devices alone"),
             Option("stages", "rising parts of the group, e.g. 0.01,0.1,0.5,1", numbers),
             Option("reported", "part of a stage's devices that must have reported", float),
             Option("hold_s", "seconds that a stage lasts at least", float),
             Option("approval", "every next stage waits for an admin", bool),
             Option("tolerance", "a device is worse from this fraction on", float),
             Option("error_rate", "chance of taking back what harms nobody", float),
             Option("again", "also what was taken back before", bool),
         )),
    *(
        Call("releases", verb, words, "POST", f"/releases/{{release_id}}/{verb}")
        for verb, words in (
            ("approve", "go to the next stage now"),
            ("pause", "stay at this stage"),
            ("resume", "go on"),
            ("rollback", "return to the version before, or on to what came meanwhile"),
        )
    ),
    Call("devices", "list", "devices by id", "GET", "/devices", cursor="after", rows="devices",
         query=(_SOC, Option("group", "of this group alone")),
         columns=("device_id", "name", "soc", "frequency", "last_seen_at", "drift", "revoked")),
    Call("devices", "show", "one device", "GET", "/devices/{device_id}"),
    Call("devices", "describe", "give it a name and labels", "PUT", "/devices/{device_id}/description",
         body=(Option("name", "for people"), Option("labels", "key=value,key=value", pairs))),
    Call("devices", "revoke", "end its tokens and take its figures back", "DELETE", "/devices/{device_id}"),
    Call("groups", "list", "groups of devices", "GET", "/groups", cursor="after",
         rows="groups", columns=("name", "devices", "socs", "labels", "share")),
    Call("groups", "show", "one group", "GET", "/groups/{name}"),
    Call("groups", "set", "say which devices belong to it", "PUT", "/groups/{name}", body=_SELECTOR),
    Call("groups", "drop", "forget it", "DELETE", "/groups/{name}"),
    Call("tokens", "list", "tokens of people, newest first; the secrets are not kept", "GET", "/tokens",
         cursor="before", rows="tokens",
         query=(Option("scope", "admin, viewer or device", click.Choice(("admin", "viewer", "device"))),),
         columns=("id", "scope", "state", "created_at", "expires_at", "device_id", "label")),
    Call("tokens", "create", "make an admin's token and print it, this once", "POST", "/tokens", only="token",
         body=(Option("read_only", "a viewer's, which may look at everything and change nothing", bool), _EXPIRES,
               _LABEL)),
    Call("tokens", "revoke", "revoke a token, everywhere at once", "DELETE", "/tokens/{number}"),
    Call("claims", "list", "claims that devices enrol with, newest first", "GET", "/claims", cursor="before",
         rows="claims", columns=("id", "state", "uses_left", "created_at", "expires_at", "label")),
    Call("claims", "create", "make a claim, which devices exchange for tokens of their own", "POST", "/claims",
         only="token",
         body=(Option("uses", "how many devices may enrol with it (default: any number)", click.IntRange(min=1)),
               _EXPIRES, _LABEL)),
    Call("claims", "revoke", "revoke a claim; devices that enrolled with it keep their tokens", "DELETE",
         "/claims/{number}"),
    Call("audit", "list", "who did what, newest first", "GET", "/audit", cursor="before", rows="entries",
         query=(Option("actor", "by"), Option("action", "of this kind"), Option("subject", "to")),
         columns=("at", "actor", "action", "subject", "detail", "request_id")),
    Call("audit", "verify", "check that no entry was changed; the head is to be kept", "GET",
         "/audit/proof", query=(Option("head", "one that was kept from an earlier check"),)),
)  # fmt: skip
