"""The plain decoder of row images: what the machine code is held against, and what it leaves."""
