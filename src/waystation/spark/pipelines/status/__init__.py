"""What is known of a pipeline that runs: its folder, and the topic in which the broker hears of it."""
