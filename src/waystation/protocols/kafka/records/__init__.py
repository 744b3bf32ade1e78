"""Records in and out by Kafka's protocol: Produce, Fetch and ListOffsets, with codecs of their own."""
