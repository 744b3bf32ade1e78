"""Consumer groups of both protocols and their offsets as pure state machines: events in, decisions out."""
