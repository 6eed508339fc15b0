package segfile

import (
	"bytes"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// killedLog is what a killed process leaves of a log with a large segment:
// nothing of it is synced but what an append at its level is.
func killedLog(t *testing.T) (*vfs.Mem, Config) {
	t.Helper()
	m := vfs.NewMem()
	c := small(m, "data")
	c.Durability, c.SegmentBytes = penstock.Written, 4*penstock.MiB
	l := openLog(t, c)
	for range 20 {
		mustAppend(t, l.Partition(0), string(bytes.Repeat([]byte("r"), 900)))
	}
	m.Kill()
	_ = l.Close() // the process is dead
	return m, c
}

// TestTornTailBehindZerosIsFoundThoughTheFileSystemSkipsThem: what a kill left
// of a write lies far behind the end, in the page cache only, with nothing
// before it. The open asks the file system where there is data, and finds it
// also when that cannot tell.
func TestTornTailBehindZerosIsFoundThoughTheFileSystemSkipsThem(t *testing.T) {
	for name, fault := range map[string]error{"told": nil, "not told": errors.New("no such call")} {
		t.Run(name, func(t *testing.T) {
			m, c := killedLog(t)
			f, err := m.Open(firstSegment, true)
			must(t, err)
			const at = 1<<20 + 8
			_, err = f.WriteAt([]byte("a part of a frame"), at)
			must(t, err)
			must(t, f.Close())
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpData {
					return vfs.Fault{Err: fault}
				}
				return vfs.Fault{}
			})
			l := openLog(t, c)
			r := l.Recovery()[0]
			if r.End != 20 || r.CutBytes < 900<<10 || r.Quarantine == "" || r.Damage != nil {
				t.Errorf("recovery found %+v, want 20 events and a tail that was cut", r)
			}
			f, err = m.Open(firstSegment, false)
			must(t, err)
			b := make([]byte, 100)
			_, err = f.ReadAt(b, at)
			must(t, err)
			if lastNonZero(b) >= 0 {
				t.Errorf("the torn tail is still there: %q", b)
			}
			must(t, f.Close())
		})
	}
}

// TestOpenAfterAKillReadsNothingThatWasNeverWritten: nor does it sync the
// directories whose names state.slot proves.
func TestOpenAfterAKillReadsNothingThatWasNeverWritten(t *testing.T) {
	m, c := killedLog(t)
	var mu sync.Mutex
	read, last, dirs := int64(0), int64(0), 0
	m.SetFault(func(op vfs.Op) vfs.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op.Kind == vfs.OpRead && op.Name == firstSegment:
			read, last = read+op.Len, max(last, op.Off+op.Len)
		case op.Kind == vfs.OpSyncDir:
			dirs++
		}
		return vfs.Fault{}
	})
	l := openLog(t, c)
	m.SetFault(nil)
	mu.Lock()
	defer mu.Unlock()
	if r := l.Recovery()[0]; r.Clean || r.End != 20 || r.CutBytes != 0 {
		t.Errorf("recovery found %+v", r)
	}
	if read > 100<<10 || last > 100<<10 || read == 0 {
		t.Errorf("%d bytes were read, up to position %d; 20 frames of 1 KiB were written", read, last)
	}
	if dirs != 0 {
		t.Errorf("%d directories were synced whose names were known to be durable", dirs)
	}
}

// TestFailedSyncAtAnOpenFailsTheOpen: what was found is not served when the disk
// refuses to keep it.
func TestFailedSyncAtAnOpenFailsTheOpen(t *testing.T) {
	for _, name := range []string{filepath.Base(firstSegment), stateName} {
		t.Run(name, func(t *testing.T) {
			m, c := killedLog(t)
			eio := errors.New("input/output error")
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpSync && filepath.Base(op.Name) == name {
					return vfs.Fault{Err: eio}
				}
				return vfs.Fault{}
			})
			if l, err := Open(c); !errors.Is(err, eio) {
				t.Errorf("Open: %v, want the error of the sync", err)
				if err == nil {
					_ = l.Close()
				}
			}
		})
	}
}
