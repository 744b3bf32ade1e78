"""`waystation completion`: scripts that complete commands in a shell."""
