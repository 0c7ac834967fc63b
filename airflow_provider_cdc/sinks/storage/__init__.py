"""Storage of files: a local folder or an object store.

``storage.Storage`` is the protocol: read, write, list and delete by relative names, and ``write_once``, which tells the
caller whether it was the first writer. ``local_storage.LocalStorage`` uses hard links for this, and
``object_storage.ObjectStorage`` uses conditional PUTs; ``open_storage`` chooses between them by the address.
``store_check`` tests whether ``write_once`` works in a store. ``store_client`` holds credentials, and
``request_counts`` counts requests. There is no rename, append or lock, because object stores have none. The room is
called by every room that keeps files, such as the plan, manifests, staged rows and Delta tables.
"""
