"""The commands about users, rules, certificates and the audit log."""
