"""The source: MySQL and MariaDB."""
