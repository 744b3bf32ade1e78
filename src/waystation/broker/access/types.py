"""What the verbs of `Access` take and give, by name. Protocols import these here: where the core keeps them is its own
affair."""

from waystation.security.principals import ANONYMOUS as ANONYMOUS
from waystation.security.principals import Principal as Principal
