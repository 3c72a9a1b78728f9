"""What programs of a plan share, whichever target they run on."""
