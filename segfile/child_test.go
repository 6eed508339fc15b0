package segfile

// child runs what a re-executed test binary is to do and never returns then.
func child() {}
