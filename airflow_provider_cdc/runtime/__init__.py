"""Services for every run: context, heartbeat, control requests, and detection of server restarts."""
