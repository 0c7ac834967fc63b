"""Machine code that walks events and decodes rows, GTIDs and JSON documents."""
