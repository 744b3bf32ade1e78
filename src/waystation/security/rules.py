"""Rules: who may do what to what, from where. Pure.

One set of rules has two spellings: Kafka's ACLs (a principal, a host, an operation, a kind of resource and a pattern of
names) and RabbitMQ's permissions (what a user may configure, write and read in a virtual host, as regular expressions;
`rabbitmq_permissions.py`). Both are `Rule`s here, and a rule does not remember which of them it came from.

What must hold: a rule that denies wins over all that allow; where no rule matches, the answer is no; a superuser is
not asked about. An operation implies others, as in Kafka: who may read, write, delete or alter a thing may describe
it, and who may alter its settings may describe them. Denying describe denies nothing else.

A rule of a namespace is about names as those in it say them. A rule of no namespace is about full names, as protocols
that know no namespaces say them: `shop.orders` is a topic of the namespace `shop`, `shop/jobs` one of its queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from waystation.errors import Invalid
from waystation.routing.matching.regex import Regex

Operation = Literal[
    "read", "write", "create", "delete", "alter", "describe",
    "describe-configs", "alter-configs", "cluster-action", "idempotent-write",
]  # fmt: skip
Resource = Literal[
    "topic", "queue", "exchange", "transactional-id", "group", "inbox", "namespace", "cluster", "user"
]  # fmt: skip
Match = Literal["literal", "prefixed", "regex"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
RESOURCES: tuple[Resource, ...] = get_args(Resource)

ALL = "all"
"""As an operation of a rule."""
ANY = "*"
"""As a host, a namespace, a name, or the name of a principal."""

CLUSTER = "kafka-cluster"
"""The name of the one cluster, as Kafka's rules say it."""

IMPLIES: dict[Operation, tuple[Operation, ...]] = {
    "describe": ("read", "write", "delete", "alter"),
    "describe-configs": ("alter-configs",),
}
"""What is allowed to whoever may do one of these."""

MAX_NAME = 512


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule. All fields together tell it from others: to add it twice is to add it once."""

    principal: str  # as Kafka writes it: User:alice, Group:ops, User:* for everybody
    operation: Operation | Literal["all"]
    resource: Resource
    name: str  # of the resource; how, is said by `match`
    match: Match = "literal"  # literal: `*` is every name. prefixed: names that begin so. regex: found in the name
    allow: bool = True
    host: str = ANY  # an address
    namespace: str = ANY  # ANY: of none, so names are full names, and `*` is every name in every namespace


def check_rule(rule: Rule) -> None:
    """Raises Invalid if there cannot be such a rule."""
    kind, colon, name = rule.principal.partition(":")
    if not colon or kind not in ("User", "Group") or not name:
        raise Invalid(f"a rule is for User:NAME, Group:NAME or User:*, not {rule.principal[:60]!r}")
    if not rule.name and rule.match != "regex":
        raise Invalid(f"a rule about a {rule.resource} needs its name, or * for every {rule.resource}")
    if max(len(rule.principal), len(rule.name), len(rule.host), len(rule.namespace)) > MAX_NAME:
        raise Invalid(f"names in a rule have {MAX_NAME} characters at most")
    if rule.match == "regex":
        searching(rule.name)  # raises InvalidPattern


def searching(pattern: str) -> Regex:
    """Found anywhere in the name, as RabbitMQ does it, unless it says where; an empty one is found in no name."""
    return Regex(f"(?:.|\n)*(?:{pattern or '^$'})(?:.|\n)*")


class _Names:
    """The names that rules for one operation on one kind of resource match."""

    __slots__ = ("any", "exact", "expressions", "prefixes")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.any: set[str] = set()  # namespaces in which every name matches; ANY: in all of them
        self.exact: set[tuple[str, str]] = set()
        self.prefixes: list[tuple[str, str]] = []
        self.expressions: list[tuple[str, Regex]] = []
        for rule in rules:
            if rule.match == "literal" and rule.name == ANY:
                self.any.add(rule.namespace)
            elif rule.match == "literal":
                self.exact.add((rule.namespace, rule.name))
            elif rule.match == "prefixed":
                self.prefixes.append((rule.namespace, rule.name))
            else:
                self.expressions.append((rule.namespace, searching(rule.name)))

    def match(self, namespace: str, name: str, full: str) -> bool:
        here = ((ANY, full), (namespace, name))
        return (
            any(one in self.any or (one, known) in self.exact for one, known in here)
            or any(one == where and known.startswith(prefix) for where, known in here for one, prefix in self.prefixes)
            or any(one == where and found.matches(known) for where, known in here for one, found in self.expressions)
        )

    def cover(self, namespace: str, prefix: str, full: str) -> bool:
        """Whether every name that begins so matches."""
        here = ((ANY, full), (namespace, prefix))
        return any(one in self.any for one, _ in here) or any(
            one == where and begin.startswith(known) for where, begin in here for one, known in self.prefixes
        )

    def meet(self, namespace: str, prefix: str, full: str) -> bool:
        """Whether a name that begins so may match."""
        if self.any or self.expressions:
            return True
        here = ((ANY, full), (namespace, prefix))
        if namespace == ANY and any(one != ANY for one, _ in (*self.exact, *self.prefixes)):
            return True  # the namespace may be one whose names begin so
        return any(one == where and name.startswith(begin) for where, begin in here for one, name in self.exact) or any(
            one == where and (known.startswith(begin) or begin.startswith(known))
            for where, begin in here
            for one, known in self.prefixes
        )

    @property
    def empty(self) -> bool:
        return not (self.any or self.exact or self.prefixes or self.expressions)


class Judge:
    """What one principal may do from one host: the rules that concern it, ready to be asked."""

    __slots__ = ("_allowed", "_answers", "_denied")

    REMEMBERED = 4_096
    """Answers: a session asks about the same few names again and again."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        concerned = list(rules)
        self._allowed: dict[tuple[str, str], _Names] = {}
        self._denied: dict[tuple[str, str], _Names] = {}
        self._answers: dict[tuple[str, str, str, str], bool] = {}
        for table, allow in ((self._allowed, True), (self._denied, False)):
            for resource in RESOURCES:
                about = [rule for rule in concerned if rule.resource == resource and rule.allow is allow]
                for operation in OPERATIONS if about else ():
                    wanted = (operation, ALL, *(IMPLIES.get(operation, ()) if allow else ()))
                    names = _Names(rule for rule in about if rule.operation in wanted)
                    if not names.empty:
                        table[operation, resource] = names

    def allows(
        self, operation: Operation, resource: Resource, namespace: str, name: str, full: str | None = None
    ) -> bool:
        """`full`: the name outside of its namespace, if that is another."""
        full = name if full is None else full
        key = (operation, resource, namespace, full)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._decide(operation, resource, namespace, name, full)
            if len(self._answers) >= self.REMEMBERED:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def _decide(self, operation: Operation, resource: Resource, namespace: str, name: str, full: str) -> bool:
        denied = self._denied.get((operation, resource))
        if denied is not None and denied.match(namespace, name, full):
            return False
        allowed = self._allowed.get((operation, resource))
        return allowed is not None and allowed.match(namespace, name, full)

    def allows_under(self, operation: Operation, resource: Resource, namespace: str, prefix: str, full: str) -> bool:
        """Whether it is allowed for every name in the namespace (ANY: in any of them) that begins so."""
        denied = self._denied.get((operation, resource))
        if denied is not None and denied.meet(namespace, prefix, full):
            return False
        allowed = self._allowed.get((operation, resource))
        return allowed is not None and allowed.cover(namespace, prefix, full)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        """Whether there may be a name for which it is allowed (Kafka asks so about idempotent producers)."""
        return (operation, resource) in self._allowed


class ReadOnlyJudge(Judge):
    """Of a principal that may only look: what its user may, of `LOOKING`, and entering namespaces and reading topics,
    which takes nothing away. Taking from a queue does, and so does committing a group's offsets."""

    __slots__ = ("_whole",)

    LOOKING: frozenset[Operation] = frozenset({"describe", "describe-configs"})

    def __init__(self, whole: Judge | None) -> None:
        super().__init__(())
        self._whole = whole  # None: its user may do everything

    def _looks(self, operation: Operation, resource: Resource) -> bool:
        return operation in self.LOOKING or (operation == "read" and resource in ("topic", "namespace"))

    def allows(
        self, operation: Operation, resource: Resource, namespace: str, name: str, full: str | None = None
    ) -> bool:
        return self._looks(operation, resource) and (
            self._whole is None or self._whole.allows(operation, resource, namespace, name, full)
        )

    def allows_under(self, operation: Operation, resource: Resource, namespace: str, prefix: str, full: str) -> bool:
        return self._looks(operation, resource) and (
            self._whole is None or self._whole.allows_under(operation, resource, namespace, prefix, full)
        )

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        return self._looks(operation, resource) and (
            self._whole is None or self._whole.allows_some(operation, resource)
        )


class RuleBook:
    """All rules at one moment. A change makes another one, so that whoever keeps a `Judge` sees that it is old."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = frozenset(rules)
        self._by_principal: dict[str, list[Rule]] = {}
        for rule in sorted(self.rules, key=msgspec.json.encode):
            self._by_principal.setdefault(rule.principal, []).append(rule)

    def concerning(self, user: str, groups: Iterable[str] = (), host: str = ANY) -> list[Rule]:
        """The rules for a user by its name, from an address."""
        names = dict.fromkeys((f"User:{user}", f"User:{ANY}", *(f"Group:{group}" for group in groups)))
        found = (rule for name in names for rule in self._by_principal.get(name, ()))
        # Who may come from anywhere is denied what anybody from anywhere is.
        return [rule for rule in found if rule.host in (ANY, host) or (host == ANY and not rule.allow)]
