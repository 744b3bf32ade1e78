"""`waystation demo`: a small shop that uses all of the broker, and the tour through it.

In the package, not among the examples, since it runs from an installed wheel. The shop uses what everybody can use: the
public client, HTTP and AMQP. Nothing but the command line's `demo` imports it, and only when it is run.
"""
