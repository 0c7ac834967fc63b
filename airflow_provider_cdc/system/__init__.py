"""Processes, permissions, temporary folders and failpoints: what the rest of the code needs from Linux.

``processes`` starts and ends sessions, tells whether a process of this or another host is dead, and rotates and tails
the logs of drivers. ``temp_dirs.temporary_folder`` creates a folder that is removed when its owner ends, or by the next
process if the owner was killed. ``permissions`` keeps the files of a pipeline from other users, and
``cache_folders`` finds folders for what is executed later. ``notices`` are lines of a process that has no log, such as
a Python worker of Spark. ``failpoints.failpoint("name")`` marks a place before or after a commit: it does nothing
unless a test asks it to kill the process there. ``postgres`` lets connections fail whose server is silent. The room
works with process ids, paths and names, and knows nothing about pipelines, sources or sinks. Every room may call it;
the kill schedules in ``tests/restart`` use each failpoint.
"""
