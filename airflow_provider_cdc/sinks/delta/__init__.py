"""The Delta sink: tables, slices, resume points and maintenance. No other package depends on Delta."""
