"""The verbs of those who administer a broker: users, rules, namespaces, policies, placement, views."""
