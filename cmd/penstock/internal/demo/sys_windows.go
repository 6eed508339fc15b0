package demo

import (
	"os"
	"os/exec"
	"runtime/metrics"
	"syscall"
)

// separate puts the node into a process group of its own, which Ctrl-C does not
// reach; the driver stops it in order.
func separate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// maxRSS is not known here; the node's own figure, polled while it runs, stands in.
func maxRSS(*os.ProcessState) int64 { return 0 }

// ownRSS returns what the Go runtime has taken from the system, the closest
// that this platform tells without another library.
func ownRSS() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// writableByOthers is not told by the mode bits here.
func writableByOthers(os.FileInfo) bool { return false }
