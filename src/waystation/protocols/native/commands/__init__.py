"""What each command of a native client does, and the order and the durability of its answer."""
