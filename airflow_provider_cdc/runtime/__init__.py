"""What every run needs: its context, its heartbeat, requests to it, and restarts of the server."""
