package queue_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// TestRealFullDiskComesBackWhenAllIsConsumed_QC66 fills a file system of 16 MiB
// in memory and one of 16 MiB ext4 in a file. Mounting needs root.
func TestRealFullDiskComesBackWhenAllIsConsumed_QC66(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: QC-66 on a real full disk. Mounting a small file system needs root; run this test as root")
	}
	for _, kind := range []string{"tmpfs", "ext4"} {
		for _, level := range levels {
			t.Run(kind+"/"+level.String(), func(t *testing.T) {
				dir := mountSmall(t, kind)
				c := fullConfig(filepath.Join(dir, "data"), level)
				c.SegmentBytes = 2 * penstock.MiB
				topic := openDisk(t, c)
				n := fillAndConsume(t, topic, false, 60_000) // few flushes fill the disk
				if _, err := os.Stat(filepath.Join(dir, "data", "orders", "p00000", "next.tmp")); err == nil {
					t.Error("an unfinished segment is left")
				}
				topic = reopen(t, topic, c)
				if err := topic.Produce(t.Context(), "kept"); err != nil {
					t.Error(err)
				}
				if err := os.Truncate(filepath.Join(dir, "data", "orders", "LOCK"), 0); err != nil { // as a full disk leaves it
					t.Fatal(err)
				}
				ballast := filepath.Join(dir, "ballast")
				fillToTheLastByte(t, ballast)
				topic = reopen(t, topic, c) // needs no room
				consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
				want(t, pull(t, consumer, 10), "kept")
				commit(t, consumer)
				if err := os.Remove(ballast); err != nil {
					t.Fatal(err)
				}
				if left := segments(t, dir); len(left) > 2 {
					t.Errorf("segments %v are left of %d consumed events", left, n)
				}
				if err := topic.Produce(t.Context(), "last"); err != nil {
					t.Error(err)
				}
				want(t, pull(t, consumer, 10), "last")
				if err := topic.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// fillToTheLastByte leaves no room on the file system, for root neither.
func fillToTheLastByte(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_ = f.Close() // what it has takes the room
}

// mountSmall mounts an empty file system of 16 MiB until the test ends.
func mountSmall(t *testing.T, kind string) string {
	t.Helper()
	dir := t.TempDir()
	unmount := func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH) // nothing may stay mounted
		}
	}
	if kind == "tmpfs" {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, "size=16m,mode=0700"); err != nil {
			t.Skipf("NOT TESTED: QC-66 on %s: cannot mount: %v", kind, err)
		}
		t.Cleanup(unmount)
		return dir
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: QC-66 on %s: %v: %v: %s", kind, args, err, out)
		}
	}
	t.Cleanup(unmount)
	return dir
}
