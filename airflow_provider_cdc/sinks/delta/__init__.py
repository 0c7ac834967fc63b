"""Delta tables as a sink. Nothing outside of this folder knows a Delta log."""
