"""The S3-compatible servers of the tests keep what exactness on object stores rests on."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import re
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from tests.support.s3 import S3, Kind, s3_server

RACERS, RACES = 8, 40


def race(place: S3, number: int, ready: multiprocessing.synchronize.Barrier, results: Any) -> None:
    store = place.store()
    won = []
    for name in map(str, range(RACES)):
        ready.wait(60)
        try:
            obstore.put(store, name, str(number).encode(), mode="create")
            won.append(name)
        except AlreadyExistsError:
            pass
    results.put((number, won))


@pytest.mark.parametrize("kind", ["moto", pytest.param("versitygw", marks=pytest.mark.long)])
def test_a_race_of_put_if_absent_has_one_winner(kind: Kind) -> None:
    context = multiprocessing.get_context("spawn")
    with s3_server(kind) as place:
        ready, results = context.Barrier(RACERS), context.Queue()
        racers = [context.Process(target=race, args=(place, n, ready, results)) for n in range(RACERS)]
        for racer in racers:
            racer.start()
        winners = dict(results.get(timeout=120) for _ in racers)
        for racer in racers:
            racer.join()
        assert sorted(name for won in winners.values() for name in won) == sorted(map(str, range(RACES)))
        for number, won in winners.items():
            for name in won:  # and what it has put is what is there
                assert place.client.get_object(Bucket=place.bucket, Key=name)["Body"].read() == str(number).encode()


def test_each_has_an_empty_bucket_and_leaves_none() -> None:
    with s3_server() as one, s3_server() as other:
        assert one.endpoint == other.endpoint and one.bucket != other.bucket
        one.client.put_object(Bucket=one.bucket, Key="a/b", Body=b"x")
        one.client.create_multipart_upload(Bucket=one.bucket, Key="a/c")
        assert one.keys() == ["a/b"] and other.keys() == []
        client = one.client
    assert client.list_buckets()["Buckets"] == []


def test_the_secret_is_in_no_representation() -> None:
    with s3_server() as place:
        assert place.secret not in repr(place)
        assert re.fullmatch("[0-9a-f]{32}", place.secret)
