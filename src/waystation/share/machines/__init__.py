"""Share groups as pure state machines: members, what was delivered of a partition, sessions."""
