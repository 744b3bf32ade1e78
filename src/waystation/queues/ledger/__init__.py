"""The ledger: which message of a queue is in which state. A pure state machine: it knows no disk and no clock."""
