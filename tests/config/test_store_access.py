"""What connections say of object stores, and addresses in them: understood, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.store_access import StoreAccess, parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.model.errors import NotReadyError


def said(conn_type: str, **fields: Any) -> StoreAccess:
    return parse_store_access(ResolvedConnection("lake", conn_type, **fields))


def aws(**extra: Any) -> StoreAccess:
    return said("aws", login="AKID", password="hunter2", extra=extra)


@pytest.mark.parametrize(
    ("path", "text", "uri"),
    [
        ("s3://lake", "s3://lake", "s3://lake"),
        ("s3://my.lake/a b/c/", "s3://my.lake/a b/c", "s3://my.lake/a%20b/c"),
        ("s3a://lake/x", "s3://lake/x", "s3://lake/x"),
        ("gs://lake/x=1", "gs://lake/x=1", "gs://lake/x=1"),
        ("az://box/x", "az://box/x", "az://box/x"),
        ("abfss://box@acct.dfs.core.windows.net/x/y",) * 3,
        ("abfss://box@acct.dfs.core.chinacloudapi.cn/x",) * 3,
    ],
)
def test_addresses(path: str, text: str, uri: str) -> None:
    found = StoreAddress.parse(path)
    assert found is not None and local_folder_of(path) is None
    assert found.display() == text and found.uri() == uri
    assert found.display("f g") == f"{text}/f g" and found.uri("f g") == f"{uri}/f%20g"
    assert found.child("d").display("f") == found.display("d/f")


@pytest.mark.parametrize(
    ("path", "folder"),
    [("/data/lake", "/data/lake"), ("file:///data/la%20ke", "/data/la ke"), ("/data/s3:/x", "/data/s3:/x")],
)
def test_folders(path: str, folder: str) -> None:
    assert StoreAddress.parse(path) is None and local_folder_of(path) == folder


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("s3://hunter2:x@lake/a", "before the first slash"),
        ("s3://", "before the first slash"),
        ("s3:///a", "before the first slash"),
        ("s3://lake//a", "empty, dotted or unprintable"),
        ("s3://lake/a/../hunter2", "empty, dotted or unprintable"),
        ("s3://lake/a\nhunter2", "empty, dotted or unprintable"),
        ("s3://lake/a?sig=hunter2", "has one of"),
        ("s3://lake/a%20", "has one of"),
        ("abfss://box/x", "names no account"),
        ("abfss://box@hunter2.example/x", "host is not like"),
        ("hdfs://hunter2/x", "hdfs:// is not supported"),
        ("https://hunter2/x", "https:// is not supported"),
        ("file://hunter2/x", "must not name a host"),
    ],
)
def test_addresses_that_are_none(path: str, problem: str) -> None:
    """What is refused is not shown: people write keys into addresses."""
    with pytest.raises(NotReadyError) as error:
        StoreAddress.parse(path)
    assert problem in str(error.value) and "hunter2" not in str(error.value)


def test_aws() -> None:
    found = aws(
        aws_session_token="t0k",
        region_name="eu-central-1",
        endpoint_url="http://store:9000/",
        config_kwargs={"s3": {"addressing_style": "path"}},
        verify="/etc/ca.pem",
    )
    assert found.aws_keys == ("AKID", "hunter2", "t0k")
    assert dict(found.config) == {
        "region": "eu-central-1", "endpoint": "http://store:9000", "virtual_hosted_style_request": False
    }  # fmt: skip
    assert dict(found.client) == {"allow_http": True, "root_certificate": "/etc/ca.pem"}
    assert "hunter2" not in repr(found) and "t0k" not in repr(found) and set(found.secrets) == {"hunter2", "t0k"}
    assert found.risk is not None and "encrypted" in found.risk
    assert aws(endpoint_url="http://127.0.0.1:9").risk is None and aws().risk is None
    assert aws(verify=False, endpoint_url="https://s").risk is not None
    inner = {"s3": {"endpoint_url": "https://s"}, "sts": {"endpoint_url": "https://t"}}
    assert dict(aws(service_config=json.dumps(inner)).config) == {"endpoint": "https://s"}
    assert said("aws").aws_keys is None
    assert said("aws", extra={"aws_access_key_id": "a", "aws_secret_access_key": "b"}).aws_keys == ("a", "b", None)
    assert dict(said("aws", extra={"config_kwargs": {"signature_version": "unsigned"}}).config)["skip_signature"]
    role = aws(role_arn="arn:r", assume_role_kwargs={"ExternalId": "x"}).assume_role_args
    assert dict(role) == {"RoleArn": "arn:r", "RoleSessionName": "airflow-cdc", "ExternalId": "x"}


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"profile_name": "hunter3"}, "'profile_name'"),
        ({"session_kwargs": {"profile_name": "hunter3"}}, "'session_kwargs'"),
        ({"config_kwargs": {"retries": {"hunter3": 1}}}, "'config_kwargs.retries'"),
        ({"config_kwargs": {"s3": {"payload": "hunter3"}}}, "'config_kwargs.s3.payload'"),
        ({"config_kwargs": {"s3": {"addressing_style": "hunter3"}}}, "addressing_style"),
        ({"config_kwargs": "{hunter3"}, "'config_kwargs' is not a JSON object"),
        ({"service_config": {"s3": {"verify": "hunter3"}}}, "'service_config.s3.verify'"),
        ({"endpoint_url": "https://user:hunter3@store"}, "endpoint is not an address"),
        ({"endpoint_url": "hunter3"}, "endpoint is not an address"),
        ({"assume_role_method": "assume_role_with_saml"}, "'assume_role_method'"),
        ({"assume_role_kwargs": {"ExternalId": "hunter3"}}, "requires role_arn"),
        ({"role_arn": "a", "assume_role_kwargs": {"Policy": "hunter3"}}, "'assume_role_kwargs.Policy'"),
        ({"anonymous": True}, "anonymous, and has keys"),
        ({"anonymous": "hunter3"}, "neither true nor false"),
    ],
)
def test_what_aws_must_not_say(extra: dict[str, Any], problem: str) -> None:
    """By its name, never by its value."""
    with pytest.raises(NotReadyError) as error:
        aws(**extra)
    assert problem in str(error.value) and "hunter" not in str(error.value) and "lake" in str(error.value)


def test_half_of_the_keys() -> None:
    for fields in ({"login": "a"}, {"password": "hunter2"}, {"extra": {"aws_session_token": "hunter2"}}):
        with pytest.raises(NotReadyError, match="needs both a login"):
            said("aws", **fields)


def test_google() -> None:
    key = {"type": "service_account", "private_key": "hunter2"}
    for extra in ({"keyfile_dict": key}, {"extra__google_cloud_platform__keyfile_dict": json.dumps(key)}):
        found = said("google_cloud_platform", extra={**extra, "project": "p", "num_retries": 5})
        assert json.loads(dict(found.config)["service_account_key"]) == key and "hunter2" not in repr(found)
        assert "hunter2" in ResolvedConnection("c", "google_cloud_platform", extra=extra).secrets
    assert dict(said("google_cloud_platform", extra={"key_path": "/k.json"}).config) == {"service_account": "/k.json"}
    with pytest.raises(NotReadyError, match="'is_anonymous' is for reading only"):
        said("google_cloud_platform", extra={"is_anonymous": True})
    for wrong in ({"impersonation_chain": "hunter2"}, {"key_secret_name": "hunter2"}):
        with pytest.raises(NotReadyError, match="is not supported"):
            said("google_cloud_platform", extra=wrong)
    with pytest.raises(NotReadyError, match="more than one credential"):
        said("google_cloud_platform", extra={"key_path": "/k", "keyfile_dict": key})


def test_azure() -> None:
    def config(conn_type: str = "wasb", **fields: Any) -> dict[str, Any]:
        found = said(conn_type, **fields)
        assert "hunter2" not in repr(found)
        return dict(found.config)

    by_key = {"account_name": "acct", "credential_type": "access_key", "account_key": "hunter2"}
    assert config(login="acct", password="hunter2") == by_key
    assert config("adls", host="https://acct.dfs.core.windows.net/", password="hunter2") == by_key
    assert config(host="acct.blob.core.windows.net", extra={"shared_access_key": "hunter2"}) == by_key
    text = "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=hunter2;EndpointSuffix=core.windows.net"
    assert config(extra={"connection_string": text}) == by_key
    assert "hunter2" in ResolvedConnection("c", "wasb", extra={"connection_string": text}).secrets
    sas = {"account_name": "acct", "credential_type": "sas_token", "sas_key": "sv=1&sig=hunter2"}
    assert config(login="acct", extra={"sas_token": "?sv=1&sig=hunter2"}) == sas
    secret = config(host="acct", login="client", password="hunter2", extra={"tenant_id": "ten"})
    assert secret == {
        "account_name": "acct", "credential_type": "client_secret",
        "tenant_id": "ten", "client_id": "client", "client_secret": "hunter2",
    }  # fmt: skip
    assert config(host="acct", extra={"managed_identity_client_id": "m"})["credential_type"] == "managed_identity"
    for fields, problem in (
        ({"login": "a", "password": "hunter2", "extra": {"sas_token": "hunter2"}}, "more than one credential"),
        ({"extra": {"tenant_id": "t"}}, "has a tenant_id, but no login"),
        ({"extra": {"workload_identity_tenant_id": "hunter2"}}, "'workload_identity_tenant_id' is not supported"),
    ):
        with pytest.raises(NotReadyError, match=problem) as error:
            said("wasb", **fields)
        assert "hunter2" not in str(error.value)


def test_it_must_be_for_the_store_that_the_path_names() -> None:
    aws().check_path("s3://lake/x")
    said("wasb", login="acct", password="k").check_path("abfss://box@acct.dfs.core.windows.net/x")
    said("wasb", login="acct", password="k").check_path("az://box/x")
    with pytest.raises(NotReadyError, match="is not for the store"):
        aws().check_path("gs://lake/x")
    with pytest.raises(NotReadyError, match="another account"):
        said("wasb", login="other", password="k").check_path("abfss://box@acct.dfs.core.windows.net/x")
    with pytest.raises(NotReadyError, match="is of type mysql"):
        said("mysql", login="a", password="b")
