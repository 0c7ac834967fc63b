"""The REST catalog: what requests look like, and what a fault on the way to the server means for a commit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.catalogs import rest_client
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog
from airflow_provider_cdc.sinks.iceberg.format.table_updates import set_properties
from tests.support.iceberg_catalogs import SHOP, CatalogFolderTable, empty_metadata, some_rows
from tests.support.iceberg_rest import IcebergRest, RestFault, RestProxy
from tests.support.processes import free_port, wait_for

DONE, CONFLICT, UNKNOWN = CommitOutcome.DONE, CommitOutcome.CONFLICT, CommitOutcome.UNKNOWN


@pytest.fixture
def proxy(iceberg_rest: IcebergRest) -> Iterator[RestProxy]:
    iceberg_rest.forget_all()
    with RestProxy(iceberg_rest) as found:
        yield found


@pytest.fixture
def table(proxy: RestProxy, tmp_path: Path) -> CatalogFolderTable:
    return CatalogFolderTable.make(RestCatalog({"uri": proxy.uri}), f"file://{tmp_path}/shop/customer")


def number_in(proxy: RestProxy) -> str | None:
    loaded = RestCatalog({"uri": proxy.uri}).load_table(SHOP)
    assert loaded is not None
    return loaded.metadata.properties.get("number")


@pytest.mark.parametrize(
    ("fault", "is_made"),
    [
        ("refused", False),
        ("unavailable", False),
        ("cut", False),
        ("denied", True),
        ("lost", True),
        ("short", True),
        ("slow", True),
        ("page", True),
        ("gateway", True),
    ],
)
def test_a_commit_without_a_clear_answer_is_unknown(
    proxy: RestProxy,
    table: CatalogFolderTable,
    fault: RestFault,
    is_made: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_client, "SILENCE_SECONDS", 1.0)
    table.catalog = RestCatalog({"uri": proxy.uri})
    before = len(proxy.requests)
    proxy.meet(fault)
    table.commit(table.write_rows(some_rows(1)), properties={"number": "1"})
    assert table.outcome is UNKNOWN
    assert [method for method, _ in proxy.requests[before:]].count("POST") == 1, "a commit is one attempt"
    if is_made:
        wait_for("the commit is made", lambda: number_in(proxy) == "1", 10)
    else:
        assert number_in(proxy) is None
    loaded = table.catalog.load_table(SHOP)
    assert loaded is not None and len(loaded.metadata.snapshots) == is_made
    again = CatalogFolderTable.of(table.catalog, loaded)
    again.commit(properties={"number": "2"})
    assert again.outcome is DONE and number_in(proxy) == "2"


@pytest.mark.parametrize(
    ("fault", "kind", "text", "remedy"),
    [
        ("expired", NotReadyError, "401 ByTheProxy: by the proxy", "Correct login and password"),
        ("forbidden", NotReadyError, "403 ByTheProxy: by the proxy, in answer to: ", "Grant this client the right"),
        ("busy", TransientError, "429 ByTheProxy: by the proxy, in answer to: ", "Run again when the catalog works"),
        ("invalid", TerminalError, "400 ByTheProxy: by the proxy, in answer to: ", "See what the catalog says"),
    ],
)
def test_what_a_catalog_refuses_was_not_done(
    proxy: RestProxy,
    table: CatalogFolderTable,
    fault: RestFault,
    kind: type[CdcError],
    text: str,
    remedy: str,
) -> None:
    proxy.meet(fault)
    with pytest.raises(kind, match=f"the REST catalog {proxy.uri}: {text}") as error:
        table.commit(properties={"number": "1"})
    assert error.value.remedy.startswith(remedy) and "\n" not in str(error.value)
    assert number_in(proxy) is None
    for method, attempt in (
        ("GET", lambda: table.catalog.load_table(SHOP)),
        ("POST", lambda: table.catalog.create_table(TableIdentifier(("a",), "b"), empty_metadata("file:///x"))),
        ("DELETE", lambda: table.catalog.drop_table(SHOP)),
    ):
        proxy.meet(fault, method)
        with pytest.raises(kind, match=text):
            attempt()
    assert table.catalog.load_table(SHOP) is not None


@pytest.mark.parametrize("fault", ["refused", "unavailable", "gateway", "cut", "lost", "page"])
def test_reading_that_fails_is_worth_a_retry(proxy: RestProxy, table: CatalogFolderTable, fault: RestFault) -> None:
    proxy.meet(fault, "GET")
    with pytest.raises(TransientError, match=f"REST catalog {proxy.uri}: "):
        table.catalog.load_table(SHOP)
    assert table.catalog.load_table(SHOP) is not None


def test_a_table_whose_creation_had_no_answer_can_be_loaded(proxy: RestProxy, tmp_path: Path) -> None:
    catalog = RestCatalog({"uri": proxy.uri})
    assert catalog.create_table(TableIdentifier(("shop",), "other"), empty_metadata(f"file://{tmp_path}/o")) is not None
    proxy.meet("lost")
    with pytest.raises(TransientError):
        catalog.create_table(SHOP, empty_metadata(f"file://{tmp_path}/c"))
    loaded = catalog.load_table(SHOP)
    assert loaded is not None and loaded.metadata.location == f"file://{tmp_path}/c"


def test_a_namespace_that_may_not_be_created(proxy: RestProxy, tmp_path: Path) -> None:
    catalog = RestCatalog({"uri": proxy.uri})
    proxy.meet("forbidden", path="/namespaces")
    with pytest.raises(NotReadyError, match="403 ByTheProxy: .*, in answer to: create namespace shop") as error:
        catalog.create_table(SHOP, empty_metadata(f"file://{tmp_path}/c"))
    assert error.value.remedy == "Grant this client the right to do that"
    assert catalog.load_table(SHOP) is None
    assert catalog.create_table(SHOP, empty_metadata(f"file://{tmp_path}/c")) is not None


def test_a_namespace_that_another_client_creates_at_the_same_time(proxy: RestProxy, tmp_path: Path) -> None:
    """Catalogs answer 500 then, although the namespace exists."""
    catalog, metadata = RestCatalog({"uri": proxy.uri}), empty_metadata(f"file://{tmp_path}/c")
    proxy.meet("refused", path="/namespaces")
    with pytest.raises(TransientError, match="500 ByTheProxy: .*, in answer to: create namespace shop"):
        catalog.create_table(SHOP, metadata)
    proxy.meet("denied", path="/namespaces")
    assert catalog.create_table(SHOP, metadata) is not None


def test_a_catalog_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TransientError, match=f"the REST catalog {uri}: .*refused") as error:
        RestCatalog({"uri": uri}).load_table(SHOP)
    assert error.value.remedy == "Check that it runs, and the network path to it"
    with pytest.raises(TransientError, match=r"REST catalog http://name.invalid: .*resol"):
        RestCatalog({"uri": "http://name.invalid"}).load_table(SHOP)
    monkeypatch.setattr(rest_client, "SILENCE_SECONDS", 0.3)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TransientError, match=rf"REST catalog {uri}: .*timed out"):
            RestCatalog({"uri": uri}).load_table(SHOP)


def test_a_commit_to_a_catalog_that_has_gone_was_not_made(
    iceberg_rest: IcebergRest, proxy: RestProxy, table: CatalogFolderTable
) -> None:
    proxy.stop()
    with pytest.raises(TransientError, match="refused"):
        table.commit(properties={"number": "1"})
    with RestProxy(iceberg_rest) as other:
        assert number_in(other) is None


def test_an_address_without_a_catalog(proxy: RestProxy) -> None:
    with pytest.raises(NotReadyError, match=f"the REST catalog {proxy.uri}/nowhere: ") as error:
        RestCatalog({"uri": f"{proxy.uri}/nowhere"}).load_table(SHOP)
    assert error.value.remedy.startswith("Correct the catalog's uri")
    with pytest.raises(NotReadyError, match="No connection adapters"):
        RestCatalog({"uri": "ftp://x"}).load_table(SHOP)


def test_client_credentials_and_a_token_that_expires(proxy: RestProxy, table: CatalogFolderTable) -> None:
    proxy.credential = "client", "top-secret"
    catalog = RestCatalog({"uri": proxy.uri, "credential": "client:top-secret"}, ("top-secret",))
    table.catalog = catalog
    table.commit(properties={"number": "1"})
    assert table.outcome is DONE
    proxy.tokens.clear()
    table.commit(properties={"number": "2"})
    assert table.outcome is DONE, "a new token is asked for"
    proxy.tokens.clear()
    assert catalog.load_table(SHOP) is not None
    proxy.tokens.clear()
    proxy.credential = "client", "another secret"
    with pytest.raises(NotReadyError, match="invalid_client") as error:
        table.commit(properties={"number": "3"})
    assert "top-secret" not in str(error.value)


def test_a_token(proxy: RestProxy, table: CatalogFolderTable) -> None:
    proxy.credential, proxy.tokens = ("client", "x"), {"given"}
    assert RestCatalog({"uri": proxy.uri, "token": "given"}).load_table(SHOP) is not None
    before = len(proxy.requests)
    for properties in ({"token": "wrong"}, {}):
        with pytest.raises(NotReadyError, match="401|NotAuthorizedException") as error:
            RestCatalog({"uri": proxy.uri, **properties}).load_table(SHOP)
        assert error.value.remedy.startswith("Correct login and password")
    assert len(proxy.requests) == before + 2
    proxy.credential = None


def test_headers_and_signatures(proxy: RestProxy, table: CatalogFolderTable) -> None:
    properties = {
        "uri": proxy.uri,
        "header.X-Tenant": "blue",
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-west-1",
        "rest.signing-name": "s3tables",
        "client.access-key-id": "AKIAX",
        "client.secret-access-key": "secret",
        "client.region": "eu-west-1",
    }
    catalog = RestCatalog(properties)
    assert catalog.load_table(SHOP) is not None
    assert proxy.headers["X-Tenant"] == "blue"
    assert proxy.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAX/")
    assert "/eu-west-1/s3tables/aws4_request" in proxy.headers["Authorization"]
    assert not proxy.headers.get("X-Iceberg-Access-Delegation")
    proxy.meet("cut")
    before = len(proxy.requests)
    assert catalog.commit_table(SHOP, table.base, [], [set_properties({"a": "1"})]) == (UNKNOWN, None)
    assert len(proxy.requests) == before + 1, "signed requests are not repeated either"


def test_a_name_without_secrets() -> None:
    catalog = RestCatalog({"uri": "https://user:pass@catalog.example.com/ws?key=x"})
    assert catalog.name == "REST catalog https://catalog.example.com/ws"


def test_odd_names(proxy: RestProxy, tmp_path: Path) -> None:
    catalog = RestCatalog({"uri": proxy.uri})
    for number, odd in enumerate(("a b", "ä", "x{y}", "q?&#")):
        identifier = TableIdentifier(("shop",), odd)
        created = catalog.create_table(identifier, empty_metadata(f"file://{tmp_path}/{number}"))
        assert created is not None
        assert catalog.commit_table(identifier, created, [], [set_properties({"a": "1"})])[0] is DONE
        loaded = catalog.load_table(identifier)
        assert loaded is not None and loaded.metadata.properties["a"] == "1"


def test_two_writers_at_once_through_faults(proxy: RestProxy, table: CatalogFolderTable) -> None:
    """Each makes every number of its own once: an outcome that is unknown is looked up, as the sink does."""
    table.commit(properties={"done": ""})

    def write(letter: str) -> None:
        catalog = RestCatalog({"uri": proxy.uri})
        for number in range(6):
            mark = f"{letter}{number}"
            while True:
                base = catalog.load_table(SHOP)
                assert base is not None
                own = CatalogFolderTable.of(catalog, base)
                marks = base.metadata.properties["done"].split()
                if mark in marks:
                    break
                own.commit(properties={"done": " ".join([*marks, mark])})

    for fault in ("lost", "denied", "refused"):
        proxy.meet(fault, times=2)
    writers = [Thread(target=write, args=(letter,)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    loaded = RestCatalog({"uri": proxy.uri}).load_table(SHOP)
    assert loaded is not None
    marks = loaded.metadata.properties["done"].split()
    assert sorted(marks) == sorted({f"{letter}{number}" for letter in "ab" for number in range(6)})
    assert len(loaded.metadata.snapshots) == 13
