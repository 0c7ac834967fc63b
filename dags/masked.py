"""Customers without personal data: hashed, masked and shortened columns, and only some of the rows.

The connection `pii_key`, of any type, has the secret key of the hashes as its password: `openssl rand -hex 32`.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, Stream, Transforms, cdc_pipeline

masked = Pipeline(
    name="masked",
    source=Source(conn_id="cdc_source", tables=("shop.customer",)),
    transforms=Transforms(
        hash_key_conn_id="pii_key",
        columns={
            "shop.customer.c_email_address": {"hash": "hex", "rename": "c_email_hash"},  # equal addresses stay equal
            "shop.customer.c_last_name": "mask",
            "shop.customer.c_birth_country": {"mask": 2},  # the last two characters stay
            "shop.customer.c_first_name": {"truncate": 1},
            "shop.customer.c_birth_(day|month)": "null",
            "shop.customer.c_login": "exclude",
        },
        where={"shop.customer": "c_preferred_cust_flag = 'Y' AND c_birth_year < 1990"},
    ),
    stream=Stream(mode="catch_up"),
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake") + "/masked"),
)

with DAG(
    "cdc_masked",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    # The comparison applies the same rules to the source.
    cdc_pipeline(masked, verify=True, default_args={"retries": 3, "retry_delay": timedelta(minutes=1)})
