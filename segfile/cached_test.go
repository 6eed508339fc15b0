package segfile

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// What a process finds in the page cache need not be on the disk: the one before
// may have been killed before a sync, or its sync may have failed.

// again reports whether an image is like one that was seen, and notes it.
func again(seen map[uint64]bool, img vfs.Image) bool {
	sum := img.FS.Sum()
	was := seen[sum]
	seen[sum] = true
	return was
}

// TestTrimKeepsToThePositionsThatAreDurable: a process stores a position and is
// killed before the sync; the next one trims by it, and the power fails.
func TestTrimKeepsToThePositionsThatAreDurable(t *testing.T) {
	for _, opened := range []bool{false, true} {
		for _, failed := range []bool{false, true} {
			memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
				c.SegmentEvents = 2
				l, err := open(c, fixed(1))
				must(t, err)
				p := l.Partition(0)
				for range 6 {
					mustAppend(t, p, "x")
				}
				must(t, p.Sync())
				cur, err := p.Cursor("g", StartEarliest)
				must(t, err)
				must(t, cur.Store(1, nil, true))
				if failed {
					failFirst(m, vfs.OpSync, "g"+slotExt+".tmp", syscall.EIO)
					wantErr(t, cur.Store(4, nil, true), syscall.EIO)
					m.SetFault(nil)
				} else {
					must(t, cur.Store(4, nil, false))
				}
				m.Kill()
				_ = l.Close() // changes nothing any more, and waits for what runs in the background
				l, err = open(c, fixed(2))
				must(t, err)
				p = l.Partition(0)
				if opened {
					_, err = p.Cursor("g", StartEarliest)
					must(t, err)
				}
				if g := p.Groups(); len(g) != 1 || g[0].Committed != 4 {
					t.Fatalf("the groups are %+v, want g at 4", g)
				}
				from := m.Ops()
				must(t, p.Trim(4))
				if p.Earliest() != 4 {
					t.Fatalf("the log begins at %d", p.Earliest())
				}
				images, seen := 0, map[uint64]bool{}
				for img := range m.Images(vfs.Crashes{From: from, Seed: 3}) {
					if images++; again(seen, img) {
						continue
					}
					c := c
					c.FS = img.FS
					l, err := Open(c)
					must(t, err)
					if cur, err := l.Partition(0).Cursor("g", StartEarliest); err != nil || cur.Committed() < 1 {
						t.Fatalf("opened %t, failed %t, %s: %v", opened, failed, img.Desc, err)
					}
					must(t, l.Close())
				}
				if images < 10 {
					t.Fatalf("only %d images", images)
				}
				m.Kill()
			})
		}
	}
}

// TestSlotThatWasNotSyncedIsNotTheOnlyOne: the sync of a position fails; the next
// process goes on from what it reads, and overwrites the slot that is durable
// only when the other one is.
func TestSlotThatWasNotSyncedIsNotTheOnlyOne(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		l, err := open(c, fixed(1))
		must(t, err)
		p := l.Partition(0)
		for range 6 {
			mustAppend(t, p, "x")
		}
		must(t, p.Sync())
		cur, err := p.Cursor("g", StartEarliest)
		must(t, err)
		must(t, cur.Store(1, nil, true))
		failFirst(m, vfs.OpSync, "g"+slotExt+".tmp", syscall.EIO)
		wantErr(t, cur.Store(2, nil, true), syscall.EIO)
		m.SetFault(nil)
		m.Kill()
		_ = l.Close() // changes nothing any more, and waits for what runs in the background
		from := m.Ops()
		l, err = open(c, fixed(2))
		must(t, err)
		cur, err = l.Partition(0).Cursor("g", StartEarliest)
		must(t, err)
		must(t, cur.Store(3, nil, true))
		stored := m.Ops()
		early, late := map[uint64]bool{}, map[uint64]bool{}
		for img := range m.Images(vfs.Crashes{From: from, Seed: 3}) {
			if img.After >= stored && again(late, img) || img.After < stored && again(early, img) {
				continue
			}
			c := c
			c.FS = img.FS
			l, err := Open(c)
			must(t, err)
			least := penstock.Offset(1)
			if img.After >= stored {
				least = 3
			}
			if cur, err := l.Partition(0).Cursor("g", StartEarliest); err != nil || cur.Committed() < least {
				t.Fatalf("%s: %v, want %d at the least", img.Desc, err, least)
			}
			must(t, l.Close())
		}
		m.Kill()
	})
}

// TestTrimKeepsToTheTableOfProducersThatIsDurable: the same of the table of
// numbered appends: what it says cannot be read any more when the events are gone.
func TestTrimKeepsToTheTableOfProducersThatIsDurable(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		c.SegmentEvents = 2
		l, err := open(c, fixed(1))
		must(t, err)
		p := l.Partition(0)
		for n := uint64(1); n <= 4; n++ {
			if n == 4 {
				failFirst(m, vfs.OpSync, producersName+".tmp", syscall.EIO) // of the table, with the seal
			}
			tag, err := penstock.NewProducerTag(7, n)
			must(t, err)
			f := NewFrame(1)
			f.Add([]byte("x"))
			f.SetTag(tag)
			r, err := p.Append(context.Background(), f)
			must(t, err)
			_, err = r.Wait(context.Background())
			must(t, err)
		}
		m.SetFault(nil)
		m.Kill()
		_ = l.Close() // changes nothing any more, and waits for what runs in the background
		l, err = open(c, fixed(2))
		must(t, err)
		p = l.Partition(0)
		if last, _, _, _ := p.LastOf(7); last != 4 {
			t.Fatalf("the last append known is %d", last)
		}
		must(t, p.Trim(4))
		if p.Earliest() != 4 {
			t.Fatalf("the log begins at %d", p.Earliest())
		}
		seen := map[uint64]bool{}
		for img := range m.Images(vfs.Crashes{From: m.Ops(), Seed: 3}) {
			if again(seen, img) {
				continue
			}
			c := c
			c.FS = img.FS
			l, err := Open(c)
			must(t, err)
			if last, _, _, _ := l.Partition(0).LastOf(7); last != 4 {
				t.Fatalf("%s: the last append known is %d, want 4", img.Desc, last)
			}
			must(t, l.Close())
		}
		m.Kill()
	})
}

// TestEventsOfAFailedSyncAreWrittenAgain: the sync of an append fails, and the
// next process finds the events in the page cache. When it takes them for
// durable, they are.
func TestEventsOfAFailedSyncAreWrittenAgain(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		c.WritePath = WritePwrite
		l, err := open(c, fixed(1))
		must(t, err)
		p := l.Partition(0)
		mustAppend(t, p, "a")
		must(t, p.Sync())
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, spareName) { // the name with which it was made
				return vfs.Fault{Err: syscall.EIO}
			}
			return vfs.Fault{}
		})
		_, err = tryAppend(p, "b", strings.Repeat("w", 2000))
		if c.Durability == penstock.Written {
			must(t, err)
			err = p.Sync()
		}
		wantErr(t, err, penstock.ErrUnknownOutcome)
		m.SetFault(nil)
		m.Kill()
		_ = l.Close() // changes nothing any more, and waits for what runs in the background
		l, err = open(c, fixed(2))
		must(t, err)
		p = l.Partition(0)
		opened, end := m.Ops(), p.Durable()
		if end != 3 {
			t.Fatalf("%d events are durable after the open, want the 3 that are there", end)
		}
		if c.Durability == penstock.Synced {
			mustAppend(t, p, "c")
		}
		seen := map[uint64]bool{}
		for img := range m.Images(vfs.Crashes{From: opened, Seed: 3}) {
			if again(seen, img) {
				continue
			}
			c := c
			c.FS = img.FS
			l, err := Open(c)
			must(t, err)
			got, err := readAll(l.Partition(0), 0)
			if err != nil || len(got) < int(end) || got[0] != "a" || got[1] != "b" || l.Recovery()[0].Damage != nil {
				t.Fatalf("%s: %d events, %v, damage %v", img.Desc, len(got), err, l.Recovery()[0].Damage)
			}
			must(t, l.Close())
		}
		m.Kill()
	})
}
