"""Routing: which queues and topics a message goes to. Exchanges and bindings, patterns and filter expressions; pure."""
