"""Reading and writing published formats; foreign names appear here and nowhere else."""
