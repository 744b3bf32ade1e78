"""Connections to a broker: which one and as whom, over a socket or in this process, and the way back."""
