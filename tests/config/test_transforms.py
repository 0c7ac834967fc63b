"""Which policy a column has, which condition a table has, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from airflow_provider_cdc.config import Pipeline, Sink, Source, Transforms
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.hash_key import hash_key_from_connection, hash_key_id
from airflow_provider_cdc.model.column_policy import ColumnPolicy
from airflow_provider_cdc.model.errors import NotReadyError

TEXT = """
name: shop
source: {conn_id: cdc_source, tables: [shop.customers]}
sink: {path: /data/lake}
transforms:
  hash_key_conn_id: pii_key
  columns:
    shop.customers.email: {hash: hex}
    shop.customers.login: hash
    shop.customers.token: {hash: binary}
    shop.customers.phone: {mask: 4}
    shop.customers.name: mask
    shop.customers.notes: {truncate: 20}
    shop.customers.birthday: null
    shop.customers.city: "null"
    shop.customers.street:
    shop.customers.password: exclude
    shop.customers.mail: {hash: hex, rename: mail_hash}
    shop.customers.iban: {rename: account, mask: 2}
    shop.customers.zip: {rename: postcode}
  where:
    shop.orders: tenant_id = 7 AND status <> 'draft'
"""
COLUMNS = [("shop", "customers", name) for name in ("id", "email", "phone")]
KEY = "f1d2" * 16


def refusal(**sections: Any) -> str:
    """The one line that refuses such a section."""
    with pytest.raises(NotReadyError) as error:
        Transforms(**sections)
    assert "\n" not in str(error.value) and error.value.remedy
    return str(error.value)


@pytest.mark.parametrize(
    ("column", "policy"),
    [
        ("email", ColumnPolicy("email", "hash")),
        ("login", ColumnPolicy("login", "hash", encoding="hex")),
        ("token", ColumnPolicy("token", "hash", encoding="binary")),
        ("phone", ColumnPolicy("phone", "mask", length=4)),
        ("name", ColumnPolicy("name", "mask", length=0)),
        ("notes", ColumnPolicy("notes", "truncate", length=20)),
        ("birthday", ColumnPolicy("birthday", "null")),
        ("city", ColumnPolicy("city", "null")),
        ("street", ColumnPolicy("street", "null")),
        ("password", None),
        ("mail", ColumnPolicy("mail", "hash", "mail_hash")),
        ("iban", ColumnPolicy("iban", "mask", "account", length=2)),
        ("zip", ColumnPolicy("zip", "keep", "postcode")),
        ("id", None),
        ("emails", None),
    ],
)
def test_policies_of_columns(column: str, policy: ColumnPolicy | None) -> None:
    pipeline = Pipeline.from_yaml(TEXT)
    assert pipeline.transforms.policy_of("shop", "customers", column) == policy
    assert pipeline.transforms.policy_of("shop", "suppliers", column) is None
    assert pipeline.transforms.excludes("shop", "customers", column) is (column == "password")
    assert pipeline.copies_column("shop", "customers", column) is (column != "password")


def test_conditions_of_tables() -> None:
    transforms = Pipeline.from_yaml(TEXT).transforms
    assert transforms.condition_of("shop", "orders") == "tenant_id = 7 AND status <> 'draft'"
    assert transforms.condition_of("shop", "orders2") is None
    assert Transforms(where={"shop.orders": " a = 1\n"}).condition_of("shop", "orders") == "a = 1"


def test_yaml_and_python_and_dictionaries_say_the_same() -> None:
    pipeline = Pipeline.from_yaml(TEXT)
    assert Pipeline.from_yaml(pipeline.to_yaml()) == pipeline
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline
    assert pipeline.to_dict()["transforms"]["columns"]["shop.customers.street"] == "null"
    value = yaml.safe_load(TEXT)["transforms"]
    assert pipeline.transforms == Transforms(value["hash_key_conn_id"], value["columns"], value["where"])
    assert hash(pipeline) == hash(Pipeline.from_dict(pipeline.to_dict()))
    assert Transforms(columns={"a.b.c": "hash"}, hash_key_conn_id="k") == Transforms("k", {"a.b.c": {"hash": "hex"}})


def test_the_section_may_be_missing_or_empty() -> None:
    value = yaml.safe_load(TEXT)
    del value["transforms"]
    plain = Pipeline.from_dict(value)
    assert plain.transforms == Transforms() and not plain.transforms.hashes_columns
    for empty in (None, {}, {"columns": None, "where": None}):
        assert Pipeline.from_dict({**value, "transforms": empty}) == plain
    assert plain.copies_column("shop", "customers", "password")


def test_values_that_are_given_are_not_changed() -> None:
    columns = {"a.b.c": {"mask": 1}, "a.b.d": None}
    before = copy.deepcopy(columns)
    Transforms(columns=columns)
    assert columns == before


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a.b.c": "hide"}, "transforms.columns: a.b.c is 'hide'. It must be hash, {hash: hex}, {hash: binary}, mask"),
        ({"a.b.c": "truncate"}, "transforms.columns: a.b.c is 'truncate'. It must be"),
        ({"a.b.c": "rename"}, "a.b.c is 'rename'"),
        ({"a.b.c": "keep"}, "a.b.c is 'keep'"),
        ({"a.b.c": {}}, "a.b.c is {}"),
        ({"a.b.c": 4}, "a.b.c is 4"),
        ({"a.b.c": ["hash"]}, "a.b.c is ['hash']"),
        ({"a.b.c": {"null": True}}, "a.b.c is {'null': True}"),
        ({"a.b.c": {"hash": "hex", "salt": 1}}, "a.b.c is {'hash': 'hex', 'salt': 1}"),
        ({"a.b.c": {"hash": "base64"}}, "transforms.columns: a.b.c.hash is 'base64'. It must be one of hex, binary"),
        ({"a.b.c": {"hash": None}}, "a.b.c.hash is None"),
        ({"a.b.c": {"mask": -1}}, "a.b.c.mask is -1. It must be a whole number from 0"),
        ({"a.b.c": {"mask": True}}, "a.b.c.mask is True"),
        ({"a.b.c": {"mask": "4"}}, "a.b.c.mask is '4'"),
        ({"a.b.c": {"mask": 1 << 31}}, "a.b.c.mask is 2147483648"),
        ({"a.b.c": {"truncate": 0}}, "a.b.c.truncate is 0. It must be a whole number from 1"),
        ({"a.b.c": {"mask": 4, "truncate": 5}}, "It must be one of hash, mask and truncate"),
        ({"a.b.c": {"rename": ""}}, "a.b.c.rename is ''. It must be a name"),
        ({"a.b.c": {"rename": " a"}}, "a.b.c.rename is ' a'"),
        ({"a.b.c": {"rename": "a\nb"}}, "a.b.c.rename is 'a\\nb'"),
        ({"a.b.c": {"rename": 5}}, "a.b.c.rename is 5"),
        ({"a.b.c": {"rename": "x" * 256}}, "It must be a name of 1 to 255"),
        ({"a.b": "mask"}, "transforms.columns is 'a.b'. It must be a regular expression with dots between database"),
        ({"a.b.(": "mask"}, "transforms.columns is 'a.b.('. It must be a list of valid regular"),
        ({5: "mask"}, "transforms.columns is 5"),
        (["a.b.c"], "transforms.columns is ['a.b.c']. It must be a mapping such as"),
        ("a.b.c", "transforms.columns is 'a.b.c'"),
        ({"a.b.c": "hash"}, "transforms.columns has hash for a.b.c, and transforms.hash_key_conn_id is missing"),
    ],
)
def test_refused_policies(columns: Any, words: str) -> None:
    assert words in refusal(columns=columns)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"a.b": ""}, "transforms.where: a.b is ''. It must be a condition such as tenant_id = 7"),
        ({"a.b": "  "}, "transforms.where: a.b is '  '"),
        ({"a.b": None}, "transforms.where: a.b is None"),
        ({"a.b": True}, "transforms.where: a.b is True"),
        ({"a": "x = 1"}, "transforms.where is 'a'. It must be a regular expression with a dot between"),
        ("x = 1", "transforms.where is 'x = 1'. It must be a mapping such as {shop.orders: tenant_id = 7}"),
    ],
)
def test_refused_conditions(where: Any, words: str) -> None:
    assert words in refusal(where=where)


def test_refused_connections() -> None:
    assert "is not the id of a connection" in refusal(hash_key_conn_id="a://b:secret@c", columns={"a.b.c": "hash"})
    assert "secret" not in refusal(hash_key_conn_id="a://b:secret@c", columns={"a.b.c": "hash"})
    assert "has hash for no column. Leave it out" in refusal(hash_key_conn_id="k", columns={"a.b.c": "mask"})


def test_unknown_keys_and_other_objects() -> None:
    value = yaml.safe_load(TEXT)
    value["transforms"]["column"] = {}
    with pytest.raises(NotReadyError, match=r"unknown key transforms\.column\. Did you mean transforms\.columns\?"):
        Pipeline.from_dict(value)
    with pytest.raises(NotReadyError, match=r"transforms is .* It must be a Transforms"):
        Pipeline(name="p", source=Source("c", ("a.b",)), sink=Sink("/d"), transforms={"columns": {}})  # type: ignore[arg-type]


def test_two_patterns_that_differ_are_refused() -> None:
    """Neither wins: one of them may be the one that hides the values."""
    transforms = Transforms("k", {"shop.customers..*": "hash", "shop.customers.email": {"mask": 2}})
    for ask in (transforms.policy_of, transforms.excludes):
        with pytest.raises(NotReadyError) as error:
            ask("shop", "customers", "email")
        for name in ("shop.customers.email matches", "shop.customers..*", "transforms.columns, which differ"):
            assert name in str(error.value)
    assert transforms.policy_of("shop", "customers", "name") == ColumnPolicy("name", "hash")
    for policy in ("exclude", None, {"hash": "binary"}, {"hash": "hex", "rename": "a"}):
        other = Transforms("k", {"shop.customers..*": "hash", "shop.customers.email": policy})
        with pytest.raises(NotReadyError, match="which differ"):
            other.policy_of("shop", "customers", "email")


def test_two_patterns_that_agree_are_one() -> None:
    transforms = Transforms("k", {"shop.customers..*": "hash", "shop.customers.email": {"hash": "hex"}})
    assert transforms.policy_of("shop", "customers", "email") == ColumnPolicy("email", "hash")


def test_two_conditions_that_differ_are_refused() -> None:
    transforms = Transforms(where={"shop..*": "a = 1", "shop.orders": "a = 2", "shop.item": "a = 1"})
    with pytest.raises(NotReadyError, match=r"shop\.orders matches shop\.\.\* and shop\.orders of transforms\.where"):
        transforms.condition_of("shop", "orders")
    assert transforms.condition_of("shop", "item") == "a = 1"


def test_patterns_that_match_nothing_are_named() -> None:
    """A wrong name would leave values in clear."""
    patterns = {"shop.customers.emial": "mask", "shop.customers.(email|phone)": "mask", "crm..*.phone": "exclude"}
    transforms = Transforms(columns=patterns, where={"shop.customer": "a = 1", "shop.customers": "a = 1"})
    assert transforms.unmatched(iter(COLUMNS)) == ["shop.customers.emial", "crm..*.phone"]
    assert transforms.unmatched_conditions(iter([("shop", "customers"), ("shop", "orders")])) == ["shop.customer"]
    assert Transforms().unmatched(COLUMNS) == Transforms().unmatched_conditions([]) == []


@pytest.mark.parametrize("kind", ["mysql", "generic", "http"])
def test_the_key_is_the_password_of_a_connection(kind: str) -> None:
    assert hash_key_from_connection(ResolvedConnection("pii_key", kind, password=KEY)) == KEY.encode()
    assert hash_key_from_connection(ResolvedConnection("pii_key", kind, password="é" * 8)) == ("é" * 8).encode()


@pytest.mark.parametrize(
    ("password", "words"),
    [
        (None, "connection pii_key (transforms.hash_key_conn_id) has no password"),
        ("", "has no password"),
        ("hunter2hunter2x", "has a password of fewer than 16 bytes"),
        ("hunter2" * 5 + "\ud800", "has a password that is not text"),
    ],
)
def test_refused_keys(password: str | None, words: str) -> None:
    with pytest.raises(NotReadyError) as error:
        hash_key_from_connection(ResolvedConnection("pii_key", "generic", password=password))
    assert words in str(error.value) and "openssl rand -hex 32" in str(error.value)
    assert "hunter2" not in str(error.value) and error.value.__suppress_context__ is (password or "").endswith("\ud800")


def test_the_shortest_key() -> None:
    assert hash_key_from_connection(ResolvedConnection("pii_key", "generic", password="x" * 16)) == b"x" * 16


def test_a_key_is_identified_without_being_shown() -> None:
    """The id is stored with tables, so it is the same in every version."""
    assert hash_key_id(KEY.encode()) == "6630e8aed3fe89b2"
    assert hash_key_id(b"another key of 16 bytes") != hash_key_id(KEY.encode())
