"""The context that all phases of one run share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import (
    ResolvedConnection,
    connect_server,
    database_url,
    mysql_connect_args,
    resolve_connection,
    spark_cluster,
    spark_master_and_conf,
    with_pod_namespace,
)
from airflow_provider_cdc.config.hash_key import hash_key_from_connection
from airflow_provider_cdc.config.spark_conf import (
    STREAM_REFUSED,
    ConnectServer,
    KubernetesCluster,
    YarnCluster,
    driver_pod_master,
    is_local_master,
)
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.runtime.liveness import LivenessMonitor
from airflow_provider_cdc.runtime.plan_store import PlanStore
from airflow_provider_cdc.runtime.resolved_pipeline import Reporter, ResolvedPipeline, SilentReporter


@dataclass
class RunContext(ResolvedPipeline):
    """A pipeline with its secrets resolved, its plan, and where its jobs run.

    :param spark_config: Spark's master and settings.
    :param liveness: monitor of the stream's heartbeat.
    :param interrupt: set when a comparison must end before it is complete.
    :param cluster: the cluster that runs the drivers; ``None`` if they run on the host of the task.
    :param kubernetes: how a Kubernetes cluster is accessed; ``None`` for the default.
    :param connect: the Spark Connect server that runs all jobs but the stream; ``None`` if Spark is started for them.
    """

    spark_config: tuple[str, Mapping[str, str]] = ("local[2]", {})
    liveness: LivenessMonitor = field(default_factory=LivenessMonitor, repr=False)
    interrupt: threading.Event = field(default_factory=threading.Event, repr=False)
    cluster: YarnCluster | KubernetesCluster | None = None
    kubernetes: ResolvedConnection | None = field(default=None, repr=False)
    connect: ConnectServer | None = None

    @classmethod
    def for_pipeline(
        cls,
        pipeline: Pipeline,
        reporter: Reporter | None = None,
        find_connection: Callable[[str], ResolvedConnection] = resolve_connection,
        *,
        is_driver: bool = False,
    ) -> RunContext:
        """Make a context by resolving the connections of a pipeline.

        :param find_connection: finds a connection by its id; by default in the environment.
        :param is_driver: whether this process is a driver, which has no access to the cluster that runs it.
        :raises NotReadyError: if a connection is missing or of the wrong kind.
        """
        args = mysql_connect_args(find_connection(pipeline.source.conn_id))
        url = database_url(find_connection(pipeline.state.conn_id)) if pipeline.state.conn_id else None
        spark = pipeline.spark
        master, cluster, connect = spark.master or "local[2]", None, None
        conf: Mapping[str, str] = {}
        if spark.conn_id:
            spark_connection = find_connection(spark.conn_id)
            connect = connect_server(spark_connection)
            if connect is None:
                if spark.master is not None:
                    raise NotReadyError("spark.conn_id and spark.master are both set", "Leave one of them out")
                master, conf = spark_master_and_conf(spark_connection)
                cluster = spark_cluster(spark_connection)
            elif spark.conf and spark.master is None:
                raise NotReadyError(
                    "spark.conf has no effect: all jobs run on a Spark Connect server, with its own settings",
                    "Leave it out, or set spark.master as well: spark.conf is for the stream, which runs there",
                )
        sink = pipeline.sink
        access = sink.parse_connection(find_connection(sink.conn_id)) if sink.conn_id else None
        key_id = pipeline.transforms.hash_key_conn_id
        hash_key = hash_key_from_connection(find_connection(key_id)) if key_id else None
        conf = {**conf, **spark.conf}
        kubernetes = None
        if isinstance(cluster, KubernetesCluster):
            master = driver_pod_master(conf)
            if cluster.conn_id and not is_driver:
                kubernetes = find_connection(cluster.conn_id)
                conf = with_pod_namespace(conf, kubernetes)
        return cls(
            pipeline,
            args,
            url,
            reporter or SilentReporter(),
            spark_config=(master, conf),
            access=access,
            hash_key=hash_key,
            cluster=cluster,
            kubernetes=kubernetes,
            connect=connect,
        )

    def require_stream_master(self) -> None:
        """Check that there is a place where a stream can run.

        :raises NotReadyError: if the pipeline has a Spark Connect server and nothing else.
        """
        if self.connect is not None and self.pipeline.spark.master is None:
            raise NotReadyError(*STREAM_REFUSED)

    @property
    def runs_jobs_locally(self) -> bool:
        """Whether all jobs but the stream run in processes of this host."""
        return self.connect is None and is_local_master(self.spark_config[0])

    @property
    def plans(self) -> PlanStore:
        """The plan: what loads it, makes it, and checks it."""
        return PlanStore(self)

    def check_interrupted(self) -> None:
        """Check whether the work must end before it is complete.

        :raises TransientError: if so.
        """
        if self.interrupt.is_set():
            raise TransientError("the work was interrupted", "Run it again")
