//go:build unix

package demo

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// separate puts the node into a process group of its own, so that Ctrl-C
// reaches the driver alone, which then stops the node in order.
func separate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// maxRSS returns the largest resident set of a process that has ended, in bytes.
func maxRSS(s *os.ProcessState) int64 {
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		return rssBytes(u)
	}
	return 0
}

// ownRSS returns the largest resident set of this process so far, in bytes.
func ownRSS() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return rssBytes(&u)
}

// rssBytes knows that darwin counts bytes and the others kibibytes.
func rssBytes(u *syscall.Rusage) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}

// writableByOthers reports whether someone else could write to a directory.
func writableByOthers(info os.FileInfo) bool { return info.Mode().Perm()&0o022 != 0 }
