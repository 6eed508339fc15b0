//go:build !unix

package segfile

import "os"

// endings are the ways in which a child is killed.
var endings = []struct {
	name string
	do   func(*os.Process) error
}{
	{"kill", (*os.Process).Kill},
}
