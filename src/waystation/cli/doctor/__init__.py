"""`waystation doctor`: whether this machine is fit for a broker."""
