"""Consumer groups: who reads what, and how far they have come.

Pure cores (`classic`, `consumer`, `offsets`, `assignors`, `reconcile`) take the time as an argument and return
decisions; the shell around them (`coordinator`, and the services it is made of) does the waiting, the writing and the
timers. Everything durable is a record in `__consumer_offsets` (`records`), replayed at start.
"""
