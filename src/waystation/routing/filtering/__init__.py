"""Filter expressions over messages: from a text to a closure."""
