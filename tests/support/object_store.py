"""The product's storage in a bucket of a test's server."""

from __future__ import annotations

import json

from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.store_access import StoreAccess, parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress
from airflow_provider_cdc.sinks.storage.object_storage import ObjectStorage
from tests.support.s3 import S3


def access(place: S3) -> StoreAccess:
    """What a connection says of it."""
    return parse_store_access(ResolvedConnection.from_json({"conn_id": "lake", **json.loads(place.connection())}))


def object_storage(place: S3, prefix: str = "") -> ObjectStorage:
    """The storage of a prefix."""
    address = StoreAddress.parse(place.uri(prefix))
    assert address is not None
    return ObjectStorage(address, access(place))
