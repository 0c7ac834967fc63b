"""The history of a table (SCD type 2) from the change data feed of its copy, brought up to date after each catch-up.

AUTO CDC of Spark's declarative pipelines keeps type 1 only, as of Spark 4.2: that is what the copy is already.
"""

import os

from airflow.sdk import DAG, Asset, task

LAKE, KEY = os.environ.get("CDC_LAKE", "/data/lake"), "ca_address_id"
# The copy that catch_up.py makes. The URI of its asset is its place.
addresses = Asset(f"file://{LAKE}/shop/customer_address")

with DAG(
    "cdc_history",
    schedule=[addresses],
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):

    @task
    def keep_history():
        """Each version of a row, with the time from which and up to which it was valid in the source."""
        import pandas as pd
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, Transaction

        copy, place = DeltaTable(f"{LAKE}/shop/customer_address"), f"{LAKE}/history/customer_address"
        begun = DeltaTable.is_deltatable(place)
        done = (DeltaTable(place).transaction_version("history") if begun else None) or 0
        if done >= copy.version():
            return

        # The new versions of rows, in their order. Each is valid up to the next one of its key.
        feed = pa.table(copy.load_cdf(starting_version=done + 1).read_all())
        types = [pa.string() if field.type == pa.string_view() else field.type for field in feed.schema]
        rows = feed.cast(pa.schema(zip(feed.column_names, types, strict=True))).to_pandas(types_mapper=pd.ArrowDtype)
        rows = rows[rows["_change_type"].isin(["insert", "update_postimage"])].sort_values([KEY, "_cdc_seq"])
        rows["valid_from"] = rows["_cdc_ts"]
        rows["valid_to"] = rows.groupby(KEY)["_cdc_ts"].shift(-1)

        # One commit ends what was valid before, and adds the new versions. A row that is deleted has no new one.
        ends = rows.drop_duplicates(KEY).assign(valid_to=lambda row: row["valid_from"], ends=lambda row: row[KEY])
        adds = rows[~rows["_cdc_deleted"]].assign(ends=None)
        names = [name for name in rows if not name.startswith("_")]
        history = pa.Schema.from_pandas(rows[names], preserve_index=False)
        merged = history.append(pa.field("ends", history.field(KEY).type))
        changes = [pa.Table.from_pandas(some, merged, preserve_index=False) for some in (ends, adds)]
        if not begun:
            DeltaTable.create(place, history)
        (
            DeltaTable(place)
            .merge(
                pa.concat_tables(changes),
                f"t.{KEY} = s.ends AND t.valid_to IS NULL",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties(app_transactions=[Transaction("history", copy.version())]),
            )
            .when_matched_update({"valid_to": "s.valid_to"})
            .when_not_matched_insert({name: f"s.{name}" for name in names}, predicate="s.ends IS NULL")
            .execute()
        )

    keep_history()
