"""`waystation serve`, what it can be told and by whom: flags, environment, config file; and `waystation config`."""
