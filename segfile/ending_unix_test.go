//go:build unix

package segfile

import (
	"os"
	"syscall"
)

// endings are the ways in which a child is killed. None lets it close its log.
var endings = []struct {
	name string
	do   func(*os.Process) error
}{
	{"KILL", (*os.Process).Kill},
	{"STOP and KILL", func(p *os.Process) error {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return p.Kill()
	}},
	{"TERM", func(p *os.Process) error { return p.Signal(syscall.SIGTERM) }},
}
