"""The broker: everything constructed in one visible place, and the calls that protocols make."""
