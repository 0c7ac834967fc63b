"""Sums of the hashes of rows, by bucket: what is compared of two tables without holding either.

A row's bucket follows from what tells it apart (its key, or all of its values); of a bucket only the number of its rows
and the sums of their hashes are kept. So the order of rows does not matter, a row that is there twice counts twice, and
a row can be taken out again. Two tables are equal if all sums are, but for a chance of one in 2^128 a bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: How many buckets there are: a bucket is a word of 16 bits.
BUCKET_COUNT = 1 << 16


class BucketSums:
    """Sums of some rows; they take the same memory however many rows there are.

    ``rows`` are counts (int64) and ``first`` and ``second`` the sums (uint64, modulo 2^64), one value a bucket.
    """

    def __init__(self) -> None:
        self.row_counts: Any = np.zeros(BUCKET_COUNT, np.int64)
        self.first_sums: Any = np.zeros(BUCKET_COUNT, np.uint64)
        self.second_sums: Any = np.zeros(BUCKET_COUNT, np.uint64)
        #: Bytes of the rows that were added, in memory.
        self.row_bytes = 0

    def add(self, buckets: Any, first: Any, second: Any, weights: Any = None) -> None:
        """Take in rows.

        :param buckets: array of uint16, one value a row.
        :param first: first words of the hashes (uint64), and ``second``: the second ones.
        :param weights: how often each row counts (int64); a negative number takes rows out again. Once by default.
        """
        if not len(buckets):
            return
        order = np.argsort(buckets, kind="stable")
        ordered = buckets[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        at = ordered[starts]
        if weights is None:
            self.row_counts[at] += np.diff(np.append(starts, len(ordered)))
        else:
            factors = weights.astype(np.int64).view(np.uint64)
            first, second = first * factors, second * factors
            self.row_counts[at] += np.add.reduceat(weights[order].astype(np.int64), starts)
        self.first_sums[at] += np.add.reduceat(first[order], starts)
        self.second_sums[at] += np.add.reduceat(second[order], starts)

    def merge(self, other: BucketSums) -> None:
        """Take in all rows of other sums."""
        self.row_counts += other.row_counts
        self.first_sums += other.first_sums
        self.second_sums += other.second_sums
        self.row_bytes += other.row_bytes

    def differing_buckets(self, other: BucketSums) -> Any:
        """Numbers of the buckets in which the rows are not the same, in ascending order."""
        same = (
            (self.row_counts == other.row_counts)
            & (self.first_sums == other.first_sums)
            & (self.second_sums == other.second_sums)
        )
        return np.flatnonzero(~same)
