package segfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
)

// TestStoresOnARealFullDiskAreErrors fills a file system of 16 MiB with small
// frames that are stored through a mapping, to the last byte, empties it, and
// does it again: every append ends with an offset or with ErrDiskFull, and the
// process never by a signal (QC-66). Mounting needs root.
func TestStoresOnARealFullDiskAreErrors_QC66(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: QC-66 with stores through a mapping. Mounting a small file system needs root; run this test as root")
	}
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			mnt := mountSmall(t, kind)
			c := small(nil, filepath.Join(mnt, "data"))
			c.Durability, c.WritePath, c.SegmentBytes = penstock.Written, WriteMapping, penstock.MiB
			l := openLog(t, c)
			p := l.Partition(0)
			ballast := filepath.Join(mnt, "ballast")
			for round := range 3 {
				from := p.Readable()
				fillDisk(t, p)
				takeTheRest(t, ballast)
				n := p.Readable() - from
				if _, err := tryAppend(p, strings.Repeat("f", 4000)); err == nil { // what its segment has left it may use
					n++
				}
				got, err := readAll(p, from)
				if err != nil || penstock.Offset(len(got)) != n {
					t.Fatalf("round %d: %d records, %v, want %d", round, len(got), err, n)
				}
				must(t, p.Trim(p.Readable()))
				must(t, os.Remove(ballast))
			}
			if got := p.Stats().WritePath; got != "mapping" {
				t.Errorf("the write path is %q", got)
			}
			end := mustAppend(t, p, "last")
			must(t, l.Close())
			l = openLog(t, c)
			wantRecords(t, l.Partition(0), end, "last")
			must(t, l.Close())
		})
	}
}

// fillDisk appends until there is no room.
func fillDisk(t *testing.T, p *Partition) {
	t.Helper()
	for n := 0; ; n++ {
		_, err := tryAppend(p, fmt.Sprintf("%06d%s", n, strings.Repeat("f", 1000)))
		if errors.Is(err, penstock.ErrDiskFull) {
			return
		}
		must(t, err)
		if n > 32<<10 {
			t.Fatal("the disk of 16 MiB never got full")
		}
	}
}

// takeTheRest leaves no room on the file system, for root neither.
func takeTheRest(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for _, n := range []int{64 << 10, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// mountSmall mounts an empty file system of 16 MiB until the test ends.
func mountSmall(t *testing.T, kind string) string {
	t.Helper()
	if kind == "ext4" {
		disk := filepath.Join(t.TempDir(), "disk")
		must(t, os.WriteFile(disk, nil, 0o600))
		must(t, os.Truncate(disk, 16<<20))
		if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: QC-66 on ext4: no file system can be made here: %v: %s", err, out)
		}
		return mountLoop(t, disk, filepath.Join(t.TempDir(), "mnt"))
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, "size=16m,mode=0700"); err != nil {
		t.Skipf("NOT TESTED: QC-66 on %s: cannot mount: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH) // nothing may stay mounted
		}
	})
	return dir
}
