package segfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

// TestPowerLossOfARealFileSystem: a log on ext4 on a loop device. The file
// below the device is copied while the file system is mounted: it holds what
// was flushed, and not what is in the page cache only. The copy is mounted as
// after a power loss. It needs root.
func TestPowerLossOfARealFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT CHECKED: only root can mount a loop device; run the tests of segfile as root for it")
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	must(t, os.WriteFile(disk, nil, 0o600))
	must(t, os.Truncate(disk, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput(); err != nil {
		t.Skipf("NOT CHECKED: no file system can be made here: %v: %s", err, out)
	}
	mnt := mountLoop(t, disk, filepath.Join(dir, "mnt"))
	for _, way := range writeWays {
		t.Run(way.String(), func(t *testing.T) {
			level := way.level
			c := small(nil, filepath.Join(mnt, level.String()+"-"+way.path.String()))
			way.set(&c)
			l := openLog(t, c)
			p := l.Partition(0)
			cs, err := l.Cursors("g", StartEarliest)
			must(t, err)
			var all []string
			for loss := range 4 {
				for range 15 {
					all = append(all, fmt.Sprintf("%04d-%s", len(all), strings.Repeat("r", 500)))
					mustAppend(t, p, all[len(all)-1])
				}
				must(t, cs[0].Store(penstock.Offset(len(all)-7), nil, level == penstock.Synced))
				safe, committed := penstock.Offset(len(all)), cs[0].Committed()
				if level == penstock.Written {
					safe, committed = p.Durable(), 0
				}
				lost := filepath.Join(dir, fmt.Sprint("lost-", level, "-", way.path, "-", loss))
				if out, err := exec.Command("cp", "--sparse=always", disk, lost).CombinedOutput(); err != nil {
					t.Fatalf("copy: %v: %s", err, out)
				}
				t.Run(fmt.Sprint(loss), func(t *testing.T) { afterLoss(t, lost, dir, c, all, safe, committed) })
				must(t, os.Remove(lost))
			}
			must(t, l.Close())
		})
	}
}

// afterLoss mounts a copy and looks for what was safe.
func afterLoss(t *testing.T, lost, dir string, c Config, all []string, safe, committed penstock.Offset) {
	mnt := mountLoop(t, lost, filepath.Join(dir, "mnt-"+filepath.Base(lost)))
	c.Dir = filepath.Join(mnt, filepath.Base(c.Dir))
	l, err := Open(c)
	must(t, err)
	defer l.Close()
	p := l.Partition(0)
	got, err := readAll(p, 0)
	if err != nil || p.Fault() != nil || penstock.Offset(len(got)) < safe || len(got) > len(all) {
		t.Fatalf("%d of %d records, %v, %v; %d were safe", len(got), len(all), err, p.Fault(), safe)
	}
	for i, r := range got {
		if r != all[i] {
			t.Fatalf("record %d is %.20q", i, r)
		}
	}
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	if at := cs[0].Committed(); at < committed || at > p.Readable() {
		t.Fatalf("committed %d of %d, the commit of %d was synced", at, p.Readable(), committed)
	}
	mustAppend(t, p, "on it goes")
	t.Logf("%d of %d records, %d were safe", len(got), len(all), safe)
}

// mountLoop mounts a file until the test ends.
func mountLoop(t *testing.T, disk, at string) string {
	t.Helper()
	must(t, os.Mkdir(at, 0o700))
	if out, err := exec.Command("mount", "-o", "loop", disk, at).CombinedOutput(); err != nil {
		t.Skipf("NOT CHECKED: a loop device cannot be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", at).CombinedOutput()
		if err != nil {
			t.Error(errors.Join(err, errors.New(string(out))))
		}
	})
	return at
}
