"""The stream: its epochs, its Spark query, how it resumes, and how it is controlled.

``run.begin_epoch`` starts the next epoch, raises its fence, and finds the offset at which to continue (``resume``);
then ``run_epoch_on_spark`` runs ``epoch.Epoch``. ``spark_source`` is the Structured Streaming source: its partitions
are batch ranges, which ``apply.task`` stages in the workers. ``spark_query.StreamQuery`` passes the manifests of each
batch to ``Epoch.apply_batch``, while Spark reads the next one. Between batches, the epoch follows DDL, suspends tables,
publishes re-snapshots and carries out control requests. ``prefetch`` fills the key index in advance. ``control`` sends
requests to a running stream. The room is called by ``driver.phases`` and ``cli.run``.
"""
