"""`waystation cluster`: a trial cluster on one machine, and what operators do with a cluster."""
