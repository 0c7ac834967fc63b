"""Why a row is as it is: what read it, what changed it, and whether both sides agree."""
