"""What every run needs: its context, its heartbeat, control requests, and restarts of the server."""
