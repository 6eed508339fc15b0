package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
)

// startMounted starts this program in a role, in a mount namespace of its own:
// what it mounts nobody else sees, and it ends with the process. Who is not
// root gets a user namespace as well, where the system allows that.
func (l *lab) startMounted(ctx context.Context, role string, args ...string) (*child, error) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	c, err := l.startRole(ctx, attr, role, args...)
	if err != nil {
		return nil, skip(fmt.Sprintf("%s: no mount namespace: %v", cannotMount, err))
	}
	return c, nil
}

// mountSmall mounts a file system in memory of the given size in dir.
func mountSmall(dir string, size int) (unmount func() error, err error) {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return nil, err
	}
	return func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) }, nil
}
