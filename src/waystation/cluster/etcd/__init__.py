"""A cluster's store in etcd (v3), by its JSON gateway: `EtcdStore` is what others use of it."""

from waystation.cluster.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
