"""Compare the rows of two tables by sums of row hashes, without keeping either table in memory.

A row's bucket is derived from what identifies it: its key, or all of its values. For each bucket, only the number of
rows and the sums of their hashes are kept. The order of rows therefore does not matter, a duplicate row counts twice,
and a row can be subtracted again. If all sums are equal, the tables are equal, with an error probability of 2^-128 per
bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Number of buckets: a bucket number has 16 bits.
BUCKET_COUNT = 1 << 16


class BucketSums:
    """Row counts and hash sums by bucket; memory use does not depend on the number of rows.

    ``row_counts`` (int64) holds the number of rows, and ``first_sums`` and ``second_sums`` (uint64, modulo 2^64) hold
    the sums, one value per bucket.
    """

    def __init__(self) -> None:
        self.row_counts: Any = np.zeros(BUCKET_COUNT, np.int64)
        self.first_sums: Any = np.zeros(BUCKET_COUNT, np.uint64)
        self.second_sums: Any = np.zeros(BUCKET_COUNT, np.uint64)
        #: Size in memory of the rows that were added, in bytes.
        self.row_bytes = 0

    def add(self, buckets: Any, first: Any, second: Any, weights: Any = None) -> None:
        """Add rows.

        :param buckets: array of uint16, one value per row.
        :param first: first words of the hashes (uint64).
        :param second: second words of the hashes (uint64).
        :param weights: how often each row counts (int64), 1 by default; a negative number subtracts rows.
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
        """Add all rows of other sums."""
        self.row_counts += other.row_counts
        self.first_sums += other.first_sums
        self.second_sums += other.second_sums
        self.row_bytes += other.row_bytes

    def differing_buckets(self, other: BucketSums) -> Any:
        """Return the numbers of the buckets whose rows differ, in ascending order."""
        same = (
            (self.row_counts == other.row_counts)
            & (self.first_sums == other.first_sums)
            & (self.second_sums == other.second_sums)
        )
        return np.flatnonzero(~same)
