"""What shows the records of a run elsewhere: one file for each program, and the observer that feeds them."""
