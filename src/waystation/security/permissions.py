"""Permissions: whether a principal may do something to something. Asked in one place (`broker/access`).

The rules are definitions of the kind `acl` in the catalog, and this part follows it: a change is in force, also for
sessions that are open, when the catalog tells it. While nobody has to log in (a broker without users, on loopback),
everything is allowed; superusers are never asked about. What must hold: `check` raises before anything has happened,
and answers at once.

On the loop's thread only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from waystation.catalog import Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import Full, NotAllowed
from waystation.observe.events import event_logger
from waystation.routing.namespace_names import DEFAULT, prefix_of, topic_prefix_of
from waystation.security.principals import ANONYMOUS, FULL, Principal
from waystation.security.rules import ANY, Judge, Operation, ReadOnlyJudge, Resource, Rule, RuleBook, check_rule
from waystation.security.tags import rules_of_tags
from waystation.security.whereabouts import NAMED, Whereabouts

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower
    from waystation.security.users import Users

__all__ = ["Operation", "Permissions", "Resource", "refusal"]

logger = event_logger("waystation.permissions")

KIND = "acl"
MAX_RULES = 100_000
MOST_IN_ONE_CHANGE = 50
"""Rules: the store of a cluster takes a hundred keys in one write."""
UNREADABLE = Rule(f"User:{ANY}", "all", "cluster", ANY, allow=False)
"""In the place of a rule that a later version has written, or nobody can read."""
REMEMBERED = 10_000
"""Principals whose rules are ready to be asked."""

_ALONE: frozenset[Resource] = frozenset({"cluster", "inbox"})
"""Asked about as a whole, since nobody has a rule about one of them."""
_INBOXES = Rule(f"User:{ANY}", "all", "inbox", ANY)
"""Whoever has logged in may ask and be answered: nobody can guess the name of an inbox, which its owner tells. A rule
that denies it is stronger."""

OnRefusal = Callable[[Principal, Operation, Resource, str], None]

_rule = msgspec.json.Decoder(Rule)


def edit_offline(catalog: Catalog, *, add: Iterable[Rule] = (), remove: Iterable[Rule] = ()) -> None:
    """Writes rules into a catalog that no broker uses. Blocks."""
    changes: dict[str, bytes | None] = dict.fromkeys(map(key_of, remove))
    for rule in add:
        check_rule(rule)
        changes[key_of(rule)] = msgspec.json.encode(rule)
    catalog.write(changes)


def stored_rules(catalog: Catalog) -> list[Rule]:
    """All of a catalog. Blocks."""
    return [_read(name, value) for name, value in sorted(catalog.definitions(KIND).items())]


def _read(key: str, value: bytes) -> Rule:
    try:
        return _rule.decode(value)
    except msgspec.DecodeError as error:
        logger.warning("rule.unreadable", "rule {key} cannot be read: {error}", key=key, error=error)
        return UNREADABLE


def refusal(principal: Principal, operation: Operation, resource: Resource, name: str) -> NotAllowed:
    """What `check` raises: each protocol has its own word for a kind of resource."""
    return NotAllowed(f"{principal} may not {operation} {resource} {name!r}", resource)


class Permissions:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(
        self,
        catalog: Catalog,
        follower: CatalogFollower,
        users: Users,
        *,
        superusers: Iterable[str],
        enforced: Callable[[], bool],
        whereabouts: Whereabouts,
    ) -> None:
        self._catalog = catalog
        self._follower = follower
        self._users = users
        self._superusers = frozenset(superusers)
        self._is_enforced = enforced
        self._whereabouts = whereabouts
        self._known: dict[str, Rule] = {}  # by key of the catalog
        self._book: RuleBook | None = None
        self._judges: dict[Principal, Judge | None] = {}  # None: it may do everything
        self._open = True
        self._changes = ChangeQueue()
        self.version = 0
        """Another one: what somebody remembers of earlier answers may be wrong by now."""
        self._on_change: list[Callable[[], None]] = []
        self._on_refusal: list[OnRefusal] = []
        users.subscribe_changes(lambda name, user: self.refresh())

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            self._known[key] = _read(key, entry.value)
        self.refresh()

    def refresh(self) -> None:
        """Rules or users have changed, or whether anybody has to log in."""
        self._book = None
        self._judges.clear()
        self._open = not self._is_enforced()
        self.version += 1
        for callback in self._on_change:
            callback()

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called when answers may be others than before."""
        self._on_change.append(callback)

    def subscribe_refusals(self, callback: OnRefusal) -> None:
        """`callback` is told whenever somebody is refused something; not of what lists leave out."""
        self._on_refusal.append(callback)

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    @property
    def enforced(self) -> bool:
        """Whether anybody is asked about at all."""
        return not self._open

    # -- asking -----------------------------------------------------------------------------------------------------

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Raises a `refusal` if the principal may not."""
        if principal.within and not self._inside(principal.within, resource, name):
            raise self._refusal(principal, operation, resource, name)
        if not self._open and not self._allows(principal, operation, resource, name):
            raise self._refusal(principal, operation, resource, name)

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        """The same as an answer: lists leave out what the principal may not see."""
        if principal.within and not self._inside(principal.within, resource, name):
            return False
        return self._open or self._allows(principal, operation, resource, name)

    def check_under(
        self, principal: Principal, operation: Operation, resource: Resource, prefix: str, *, beneath: bool = True
    ) -> None:
        """Raises a `refusal` if there may be something whose name begins so with which the principal may not.
        `beneath`: as that of `allows_under`."""
        asks = principal.within or not self._open
        if asks and not self.allows_under(principal, operation, resource, prefix, beneath=beneath):
            raise self._refusal(principal, operation, resource, f"{prefix}*")

    def _refusal(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> NotAllowed:
        self.tell_refusal(principal, operation, resource, name)
        return refusal(principal, operation, resource, name)

    def tell_refusal(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Somebody was refused something, for who keeps account of it."""
        for callback in self._on_refusal:
            callback(principal, operation, resource, name)

    def allows_under(
        self, principal: Principal, operation: Operation, resource: Resource, prefix: str, *, beneath: bool = True
    ) -> bool:
        """`beneath`: topics of other namespaces whose names begin so count, too: those of `shop.eu` beneath `shop.`.
        Without it, who asks leaves them out by itself."""
        if principal.within and not self._inside(principal.within, resource, prefix):
            return False
        others = self._whereabouts.beneath(prefix) if beneath and resource == "topic" else ()
        if others and principal.within:
            return False
        judge = None if self._open else self._judge(principal)
        if judge is None:
            return True
        namespace, name, full = self._whereabouts(resource, prefix)
        if not judge.allows_under(operation, resource, ANY if namespace == DEFAULT else namespace, name, full):
            return False
        # What is allowed by a rule of no namespace is so for all names that begin so.
        return namespace == DEFAULT or all(
            judge.allows_under(operation, resource, other, "", topic_prefix_of(other)) for other in others
        )

    def allows_some(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Whether there may be something of this kind with which it may."""
        if self._open:
            return True
        judge = self._judge(principal)
        return judge is None or judge.allows_some(operation, resource)

    def extent(self, principal: Principal, operation: Operation, resource: Resource) -> bool | None:
        """With how many of a kind it may: True, with all (in a namespace: with all whose names begin with its prefix);
        False, with none; None, that depends on the name. So a list that needs no look at names gets none."""
        within = principal.within
        judge = None if self._open else self._judge(principal)
        if judge is not None and not judge.allows_some(operation, resource):
            return False
        if within and resource not in NAMED:
            return None  # where such a thing is, is not said by how its name begins
        if judge is None:
            return True
        whole = judge.allows_under(operation, resource, within or ANY, "", prefix_of(within) if within else "")
        return True if whole else None

    def _allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        judge = self._judge(principal)
        if judge is None:
            return True
        if name == ANY and resource not in _ALONE:
            return judge.allows_under(operation, resource, ANY, "", "")
        return judge.allows(operation, resource, *self._whereabouts(resource, name))

    def _inside(self, namespace: str, resource: Resource, name: str) -> bool:
        """Whether something is in a namespace, or in none: what concerns the broker as a whole is for rules alone, and
        nobody can guess an inbox."""
        return resource in ("cluster", "user", "inbox") or self._whereabouts(resource, name)[0] == namespace

    def _judge(self, principal: Principal) -> Judge | None:
        try:
            return self._judges[principal]
        except KeyError:
            if len(self._judges) >= REMEMBERED:
                self._judges.clear()
            judge = self._judges[principal] = self._make_judge(principal)
            return judge

    def is_superuser(self, principal: Principal) -> bool:
        """Whether it is never asked about."""
        if principal.kind != "User":
            return principal.superuser
        if principal.role != FULL:
            return False
        user = self._users.find(principal.name)
        return principal.name in self._superusers or (user is not None and user.superuser)

    def _make_judge(self, principal: Principal) -> Judge | None:
        if principal.role != FULL:
            whole = self._make_judge(replace(principal, role=FULL))
            return ReadOnlyJudge(whole)
        if self.is_superuser(principal):
            return None
        if principal.kind != "User":
            return Judge(())
        user = self._users.find(principal.name)
        if self._book is None:
            self._book = RuleBook(self._known.values())
        groups = principal.groups if user is None else (*principal.groups, *user.groups)
        tags = () if user is None else user.tags
        found = self._book.concerning(principal.name, groups, principal.host)
        if principal.name != ANONYMOUS.name:
            found.append(_INBOXES)
        return Judge([*found, *rules_of_tags(principal.name, tags)])

    # -- rules ------------------------------------------------------------------------------------------------------

    def rules(self) -> list[Rule]:
        """All of them, in an order that stays."""
        return [rule for _, rule in sorted(self._known.items())]

    def find(self, wanted: Callable[[Rule], bool]) -> list[Rule]:
        return [rule for rule in self.rules() if wanted(rule)]

    async def add(self, rules: Iterable[Rule]) -> None:
        """Fine if they are there already. In force when this returns."""
        new = list(rules)
        for rule in new:
            check_rule(rule)
        await self._changes.to_the_end(self._write({key_of(rule): rule for rule in new}))

    async def remove(self, rules: Iterable[Rule]) -> None:
        """Fine if they are not there."""
        await self._changes.to_the_end(self._write(dict.fromkeys(map(key_of, rules))))

    async def replace(self, old: Iterable[Rule], new: Iterable[Rule]) -> None:
        """As one change, if it is not large: nobody sees the old ones removed and the new ones not there."""
        added = list(new)
        for rule in added:
            check_rule(rule)
        changes: dict[str, Rule | None] = dict.fromkeys(map(key_of, old))
        changes |= {key_of(rule): rule for rule in added}
        await self._changes.to_the_end(self._write(changes))

    async def _write(self, changes: dict[str, Rule | None]) -> None:
        real = [(key, rule) for key, rule in changes.items() if (key in self._known) != (rule is not None)]
        if len(self._known) + sum(rule is not None for _, rule in real) > MAX_RULES:
            raise Full(f"there are {len(self._known)} rules, and there can be {MAX_RULES}; delete some first")
        for begin in range(0, len(real), MOST_IN_ONE_CHANGE):
            part = real[begin : begin + MOST_IN_ONE_CHANGE]
            await self._follower.change(
                {key: None if rule is None else msgspec.json.encode(rule) for key, rule in part}
            )
        for _, rule in real:
            if rule is not None:
                logger.info("rule.added", "a rule is added: {rule}", rule=describe(rule))

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return list(self._known)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            if value is None:
                self._known.pop(key, None)
            else:
                self._known[key] = _read(key, value)
        self.refresh()


def key_of(rule: Rule) -> str:
    """Of the catalog: the same rule has the same key."""
    return rows.definition_key(KIND, hashlib.sha256(msgspec.json.encode(rule)).hexdigest()[:40])


def describe(rule: Rule) -> str:
    """In one line, for people."""
    name = {"literal": rule.name, "prefixed": f"{rule.name}…", "regex": f"/{rule.name}/"}[rule.match]
    where = "" if rule.namespace == ANY else f" in namespace {rule.namespace}"
    host = "" if rule.host == ANY else f" from {rule.host}"
    return f"{rule.principal} {'may' if rule.allow else 'may not'} {rule.operation} {rule.resource} {name}{where}{host}"
