"""An exchange: it holds bindings and says which of them a message matches. One subclass per kind, one file each.

Pure. Names, existence and persistence are the table's and the broker's affair; an exchange knows its own bindings only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from waystation.errors import Invalid
from waystation.routing.exchanges.binding import Binding, Identity, is_condition
from waystation.routing.filtering.subject import Subject


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """What the one who declares an exchange chooses."""

    kind: str = "direct"
    alternate: str | None = None
    """Gets what matches no binding."""
    durable: bool = True
    """Survives a restart."""
    auto_delete: bool = False
    """Goes with its last binding."""
    internal: bool = False
    """Gets messages from other exchanges alone."""
    arguments: dict[str, Any] = field(default_factory=dict, compare=False)
    """Kept for whoever asks. Some kinds read some of them (`Exchange.reads_arguments`)."""


class Exchange(ABC):
    """Bindings are added and removed by the table, which sees to it that each is there once."""

    reads_messages: bool = False
    """Whether the answer depends on more than the routing key."""
    reads_arguments: ClassVar[tuple[str, ...]] = ()
    """The exchange's own arguments that mean something to it."""
    reads_names: ClassVar[bool] = False
    """Whether the answer depends on which queues and topics there are."""
    reads_one_key: bool = False
    """Of a message with several routing keys, whether the first alone counts."""
    reads_conditions: ClassVar[tuple[str, ...]] = ()
    """The arguments of its bindings that it looks at (a headers exchange: at all of them)."""

    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        self.name = name
        self.settings = settings
        self.bindings: dict[Identity, Binding] = {}
        self.policy: str | None = None
        """The policy in force, by its name."""
        self.alternate = settings.alternate
        """Gets what matches no binding: the one that was declared, else the policy's."""

    def check(self, key: str, arguments: dict[str, Any]) -> None:
        """Raises Invalid if such a binding makes no sense here. A condition that nobody looks at makes none: everything
        would pass that it was to keep out."""
        ignored = [name for name in arguments if is_condition(name) and name not in self.reads_conditions]
        if ignored:
            raise Invalid(
                f"arguments: exchange {self.name!r} is of the kind {self.settings.kind!r} and does not look at"
                f" {ignored[0][:60]!r}: everything would pass; bind to a headers exchange for headers, to a filter"
                " exchange for a filter"
            )

    def add(self, binding: Binding) -> None:
        self._admit(binding)
        self.bindings[binding.identity] = binding

    def remove(self, binding: Binding) -> None:
        del self.bindings[binding.identity]
        self._dismiss(binding)

    @abstractmethod
    def _admit(self, binding: Binding) -> None: ...

    @abstractmethod
    def _dismiss(self, binding: Binding) -> None: ...

    @abstractmethod
    def match(self, subject: Subject) -> Iterable[Binding]:
        """The bindings that the message matches, each once."""
