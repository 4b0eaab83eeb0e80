"""What is ordered for a ReplicationSet or a Subscription, and what its status says: pure.

Each look repeats the order, and the herd writes nothing that is so already. So nothing here has to
remember what was done, but for a copy: that one is begun anew once for each raise of ``spec.anew``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pgherd_operator.api.base import ApiObject
from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.api.status import Truth
from pgherd_operator.api.subscriptions import (
    TABLES_SHOWN,
    FollowingCondition,
    FollowingConditionType,
    LeavingSpec,
    SetSpec,
    SetStatus,
    SubscriptionSpec,
    SubscriptionStatus,
)
from pgherd_operator.core.actions import Event

_WORDS = 1000
_WAITS = "the deletion waits for the herd: set deletionPolicy: Retain to leave it there as it is"
_IN_RESOURCES = (
    ("subscribe SET --anew`", "subscribe SET --to DSN --anew`"),
    (". `pgherd subscribe SET --to DSN --anew` copies", ". A larger spec.anew copies"),
    ("`pgherd subscribe SET --to DSN --anew` copies", "a larger spec.anew copies"),
    ("copy anew with `pgherd subscribe SET --to DSN --anew`", "raise spec.anew"),
    ("`pgherd subscribe SET --to DSN --anew`", "raise spec.anew"),
    ("repeat `pgherd subscribe` with --provider herd", "leave spec.provider out"),
    ("repeat `pgherd subscribe` with --no-forward", "leave spec.forward out"),
    ("leave --forward out", "leave spec.forward out"),
    ("repeat `pgherd subscribe`", "change spec.resume"),
    ("give --to of another one", "name another one in the Secret"),
    ("`pgherd set alter` gives", "spec.table of the ReplicationSet gives"),
    ("`pgherd set remove --sequences`", "leave it out of spec.sequences"),
    ("`pgherd set remove`", "correct the ReplicationSet"),
    ("give --tables 'SCHEMA.TABLE'", "make such a table, or correct the pattern"),
    ("PostgreSQL says of --table", "PostgreSQL says of table"),
    ("another --provider, `herd` for the members", "another provider, or none for the members"),
    ("another --provider", "another provider"),
    ("another --name", "another name"),
    (", and `--provider herd` means the members", ""),
    ("subscribe to set", "still subscribe to set"),
    (": `pgherd unsubscribe`", ": delete these Subscriptions, too"),
    ("repeat `pgherd unsubscribe`", "the operator tries again"),
    (", and --herd-only ends the subscription", ""),
    (", and --herd-only ends it here", ", and the operator ends it here after a minute"),
    ("end the subscription with `pgherd unsubscribe`", "delete the Subscription"),
    ("repeat it later, or end it in the herd only with --herd-only", "the operator tries again"),
    (" with `pgherd unsubscribe` in that herd", " in that herd"),
    ("`pgherd subscriptions`", "`kubectl get subscriptions`"),
)
_HAVE_IT_FORWARD = re.compile(r"`pgherd subscribe \S+ --name \S+ --forward`, and then repeat this")
"""What commands advise, in the words of the resource."""
Spec = TypeVar("Spec", SetSpec, SubscriptionSpec, LeavingSpec)
Status = TypeVar("Status", SetStatus, SubscriptionStatus)


class FollowingReason(StrEnum):
    """Reasons of Events and conditions: stable, listed in docs/subscriptions.md."""

    SET_READY = "SetReady"
    SET_CHANGED = "SetChanged"
    SET_DROPPED = "SetDropped"
    ORDERED = "SubscriptionOrdered"
    STARTED = "SubscriptionStarted"
    COPYING = "SubscriberCopies"
    FOLLOWING = "SubscriberFollows"
    WAITING = "SubscriberWaits"
    STOPPED = "SubscriptionStopped"
    UNREACHED = "SubscriberNotReached"
    REFUSED = "OrderRefused"
    SECRET = "SecretNotUsable"
    UNHEARD = "HerdNotReached"
    ENDED = "SubscriptionEnded"
    LEFT = "SubscriberLeftBehind"


_OF_STATE: Mapping[str, tuple[Truth, FollowingReason]] = {
    "copying": ("False", FollowingReason.COPYING),
    "following": ("True", FollowingReason.FOLLOWING),
    "stopped": ("False", FollowingReason.STOPPED),
    "unreachable": ("Unknown", FollowingReason.UNREACHED),
    "waiting": ("Unknown", FollowingReason.WAITING),
}
_TROUBLE = (FollowingReason.STOPPED, FollowingReason.UNREACHED)


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """What became of an order.

    Attributes:
        answer: of the herd; None if there is none.
        refusal: why it can't be done as things are.
        reason: for the refusal, in one word.
        silence: why nobody could be asked, or could do it now.
    """

    answer: Mapping[str, Any] | None = None
    refusal: str = ""
    reason: FollowingReason = FollowingReason.REFUSED
    silence: str = ""


@dataclass(frozen=True, slots=True)
class Shown(Generic[Status]):
    """The status to show, and Events."""

    status: Status
    events: tuple[Event, ...] = field(default=())


SetResource = ApiObject[SetSpec, SetStatus]
SubscriptionResource = ApiObject[SubscriptionSpec, SubscriptionStatus]
AnyResource = (
    SetResource
    | SubscriptionResource
    | ApiObject[LeavingSpec, SetStatus]
    | ApiObject[LeavingSpec, SubscriptionStatus]
)


def set_order(one: SetResource) -> dict[str, Any]:
    """The order to a sidecar for a set."""
    spec, status = one.spec, one.status
    known = status.chosen if status.ordered == one.generation else ()
    return {
        "name": one.name,
        "tables": list(spec.tables),
        "exclude": list(spec.exclude),
        "chosen": list(spec.table),
        "sequences": list(spec.sequences),
        "chosen_tables": list(known),
    }


def subscription_order(one: SubscriptionResource, dsn: str) -> dict[str, Any]:
    """The order to a sidecar for a subscription.

    Args:
        dsn: how members reach the subscriber, with its password.
    """
    spec, status = one.spec, one.status
    again = status.anew is not None and spec.anew > status.anew
    return {
        "name": one.name,
        "set": spec.set,
        "dsn": dsn,
        "keep_bytes": int(parse_quantity(spec.keep_bytes)),
        "keep_s": spec.keep_hours * 3600,
        "provider": spec.provider,
        "forward": spec.forward,
        "resume": status.ordered != one.generation,
        "anew_after": status.copy_number if again else None,
    }


def show_set(one: SetResource, told: OrderOutcome, now: datetime) -> Shown[SetStatus]:
    """What a set's status says after an order."""
    before, answer = one.status, told.answer
    if answer is None:
        return _not_done(one, told, now, ())
    tables, chosen = tuple(answer.get("tables", ())), tuple(answer.get("chosen", ()))
    sequences = tuple(answer.get("sequences", ()))
    ready = FollowingCondition.of(
        one, now, FollowingConditionType.READY, "True", FollowingReason.SET_READY,
        f"the set has {len(tables)} tables and {len(sequences)} sequences",
    )  # fmt: skip
    status = SetStatus(
        observed_generation=one.generation,
        ordered=one.generation,
        count=len(tables),
        tables=tables[:TABLES_SHOWN],
        sequences=sequences[:TABLES_SHOWN],
        chosen=chosen if len(chosen) <= TABLES_SHOWN else (),
        subscriptions=tuple(answer.get("subscriptions", ()))[:TABLES_SHOWN],
        conditions=(ready,),
    )
    events = [
        Event(FollowingReason.SET_CHANGED, text)
        for text in _changes(before, status)
        if before.ordered
    ]
    return Shown(status, tuple(events))


def show_subscription(
    one: SubscriptionResource, told: OrderOutcome, now: datetime
) -> Shown[SubscriptionStatus]:
    """What a subscription's status says after an order."""
    before, answer = one.status, told.answer
    kept = tuple(
        seen for seen in before.conditions if seen.type is FollowingConditionType.FOLLOWING
    )
    if answer is None:
        return _not_done(one, told, now, kept)
    reason = in_resources(str(answer.get("reason", "")))
    if not answer.get("ordered"):
        told = OrderOutcome(refusal=reason, reason=FollowingReason.UNREACHED)
        shown = _not_done(one, told, now, kept)
        update = {"state": "unreachable", "reason": reason}
        return Shown(shown.status.model_copy(update=update), shown.events)
    state = str(answer["state"])
    truth, word = _OF_STATE.get(state, ("Unknown", FollowingReason.WAITING))
    done, tables = answer.get("tables_done"), answer.get("tables")
    text = reason or f"{state}, {done} of {tables} tables are there"
    conditions = (
        FollowingCondition.of(
            one, now, FollowingConditionType.READY, "True", FollowingReason.ORDERED,
            "the herd has the subscription as the spec wants it",
        ),
        FollowingCondition.of(one, now, FollowingConditionType.FOLLOWING, truth, word, text),
    )  # fmt: skip
    lag_s = answer.get("lag_s")
    status = SubscriptionStatus.model_validate(
        {
            "observed_generation": one.generation,
            "ordered": one.generation,
            "state": state,
            "reason": reason,
            "gid": answer.get("gid"),
            "lag_gids": answer.get("lag_gids"),
            "lag_seconds": None if lag_s is None else round(lag_s),
            "tables_done": done,
            "tables_all": tables,
            "tables": f"{done}/{tables}",
            "copy_number": answer.get("generation"),
            "anew": one.spec.anew,
            "message": reason,
            "conditions": conditions,
        }
    )
    return Shown(status, tuple(_news(one, status, word, text)))


def show_waiting(one: ApiObject[Spec, Status], told: OrderOutcome, now: datetime) -> Shown[Status]:
    """What the status of a resource says that is to go, and can't yet."""
    if told.silence:
        told = replace(told, silence=f"{told.silence}; {_WAITS}")
    return _not_done(one, told, now, ())


def _not_done(
    one: ApiObject[Spec, Status],
    told: OrderOutcome,
    now: datetime,
    kept: tuple[FollowingCondition, ...],
) -> Shown[Status]:
    """Nothing was done: all that was known stays, and an Event says so once."""
    text = in_resources(told.refusal or told.silence)
    reason = told.reason if told.refusal else FollowingReason.UNHEARD
    truth: Truth = "False" if told.refusal else "Unknown"
    ready = FollowingCondition.of(one, now, FollowingConditionType.READY, truth, reason, text)
    if told.silence:  # nobody knows how the subscriber is
        kept = tuple(
            FollowingCondition.of(one, now, seen.type, "Unknown", FollowingReason.UNHEARD, text)
            for seen in kept
        )
    update = {
        "observed_generation": one.generation, "message": text, "conditions": (ready, *kept),
    }  # fmt: skip
    status = one.status.model_copy(update=update)
    same = one.status.message == text
    return Shown(status, () if same else (Event(reason, text, "Warning"),))


def _news(
    one: SubscriptionResource, status: SubscriptionStatus, word: FollowingReason, text: str
) -> Iterator[Event]:
    """What is worth an Event since the status was written."""
    before = one.status
    if not before.ordered:
        yield Event(FollowingReason.STARTED, f"the subscriber gets set {one.spec.set}")
    elif before.copy_number not in (None, status.copy_number):
        yield Event(FollowingReason.STARTED, f"the subscriber gets set {one.spec.set} anew")
    if before.state == status.state and (word not in _TROUBLE or before.reason == status.reason):
        return
    if word is FollowingReason.FOLLOWING:
        yield Event(word, f"the subscriber shows GID {status.gid}, and follows")
    elif word in _TROUBLE:
        yield Event(word, text, "Warning")


def _changes(before: SetStatus, now: SetStatus) -> Iterator[str]:
    """What became of a set, in words."""
    pairs: tuple[tuple[str, Callable[[SetStatus], tuple[str, ...]]], ...] = (
        ("tables", lambda status: status.tables),
        ("sequences", lambda status: status.sequences),
    )
    for what, of in pairs:
        came = [one for one in of(now) if one not in of(before)]
        went = [one for one in of(before) if one not in of(now)]
        if came:
            yield f"{what} that the set has more: {', '.join(came)}"[:_WORDS]
        if went:
            yield f"{what} that the set has no more: {', '.join(went)}"[:_WORDS]


def in_resources(text: str) -> str:
    """What a sidecar says, with advice for resources."""
    text = _HAVE_IT_FORWARD.sub("set its spec.forward", text)
    for command, field_of in _IN_RESOURCES:
        text = text.replace(command, field_of)
    return text[:_WORDS]
