"""What all commands use: arguments, units, the native client, tables and progress on a terminal."""
