"""Machine code: how it is compiled and kept, and its smallest parts."""
