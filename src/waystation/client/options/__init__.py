"""From what a caller says to what the broker is told, and back: values, payloads, settings. Pure."""
