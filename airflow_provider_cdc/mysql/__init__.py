"""Everything that talks to the MySQL server."""
