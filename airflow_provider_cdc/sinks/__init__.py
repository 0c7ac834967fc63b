"""Where the copies go. One module a kind of sink."""
