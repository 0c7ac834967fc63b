"""Copies a file into the default file system of Hadoop, as ``hdfs dfs -put`` does: ``<class path> <file> <name>``."""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Copy the file, and print its address."""
    import jpype

    class_path, file, name = sys.argv[1:]
    jpype.startJVM("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", classpath=class_path.split(":"))
    java: Any = jpype.JClass
    path_class = java("org.apache.hadoop.fs.Path")
    files = java("org.apache.hadoop.fs.FileSystem").get(java("org.apache.hadoop.conf.Configuration")())
    files.copyFromLocalFile(path_class(f"file://{file}"), path_class(name))
    print(files.makeQualified(path_class(name)).toString())


if __name__ == "__main__":
    main()
