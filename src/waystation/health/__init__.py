"""How a broker is: samples of its work, how far groups are behind, resource alarms, how many clients it admits."""
