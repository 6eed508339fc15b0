package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"
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

// format makes a file system in a file.
func (d *disk) format(size int64) error {
	if os.Geteuid() != 0 {
		return errors.New("it takes root")
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	f, err := os.Create(d.image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close(), os.Mkdir(d.dir, 0o700)); err != nil {
		return err
	}
	if err := command("mkfs.ext4", "-q", "-F", d.image); err != nil {
		return err
	}
	if err := d.mount(); err != nil { // so that it is known whether that works
		return err
	}
	return d.unmount()
}

func (d *disk) mount() error   { return command("mount", "-t", "ext4", "-o", "loop", d.image, d.dir) }
func (d *disk) unmount() error { return command("umount", d.dir) }

// Of ext4: ends all writing at once, without what stands in its log.
const (
	ioctlShutdown = 0x8004587d
	noLogFlush    = 2
)

// stop takes the disk's power away. A sync that is under way then may return
// without an error although what it was to write is lost, which no disk does that
// has no power: the file system does not see that it could not note which blocks
// are written.
func (d *disk) stop() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	flags := uint32(noLogFlush)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&flags)))
	if errno != 0 {
		err = fmt.Errorf("shutdown of %s: %w", d.dir, errno)
	}
	return errors.Join(err, f.Close())
}

// stopStill takes the power away while the child stands still, so that all that
// it has said was before.
func (d *disk) stopStill(c *child, err *error) []string {
	*err = c.cmd.Process.Signal(syscall.SIGSTOP)
	for *err == nil { // its threads end the calls that they are in
		var state []byte
		if state, *err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid)); strings.Contains(string(state), ") T ") {
			break
		}
	}
	if *err == nil {
		*err = d.stop()
	}
	return c.kill()
}

// command runs a program of the system.
func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
