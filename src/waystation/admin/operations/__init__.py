"""What administrators do: search topics, reset groups, move replicas and leaders."""
