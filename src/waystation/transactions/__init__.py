"""Transactions: who may write with which producer id and epoch, and how a set of partitions gets one outcome."""
