"""What lets several workers, on one or several machines, share one experiment."""
