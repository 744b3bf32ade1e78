"""Which partition a key belongs to, for the client: the broker's own answer (`log/partitioning.py`)."""

from waystation.log.partitioning import murmur2 as murmur2
from waystation.log.partitioning import partition_of as partition_of
