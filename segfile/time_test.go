package segfile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// gate lets the test hold operations back.
type gate struct {
	kind    vfs.Kind
	release chan struct{}
}

func (g *gate) fault(op vfs.Op) vfs.Fault {
	if op.Kind == g.kind {
		<-g.release
	}
	return vfs.Fault{}
}

func TestAcknowledgementWaitsForTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		l, err := Open(small(m, "data"))
		must(t, err)
		defer l.Close()
		p := l.Partition(0)
		mustAppend(t, p, "first") // the segment stands
		g := &gate{vfs.OpSync, make(chan struct{})}
		release := sync.OnceFunc(func() { close(g.release) })
		defer release() // also when the test fails: before Close, which waits
		m.SetFault(g.fault)
		r, err := appendAsync(p, "second")
		must(t, err)
		synctest.Wait()
		select {
		case <-r.Done():
			t.Fatal("acknowledged while the sync had not returned")
		default:
		}
		if p.Readable() != 1 || p.Durable() != 1 {
			t.Fatalf("readable %d, durable %d before the sync, want 1", p.Readable(), p.Durable())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = r.Wait(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		release()
		first, err := r.Wait(t.Context())
		if err != nil || first != 1 || p.Readable() != 2 || r.Level() != penstock.Synced || r.Len() != 1 {
			t.Fatalf("after the sync: offset %d, %v, readable %d", first, err, p.Readable())
		}
	})
}

func TestAppendsDuringASyncShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := small(m, "data")
		c.SegmentBytes = penstock.MiB
		l, err := Open(c)
		must(t, err)
		defer l.Close()
		p := l.Partition(0)
		mustAppend(t, p, "first")
		g := &gate{vfs.OpSync, make(chan struct{}, 1)}
		m.SetFault(g.fault)
		before := p.Stats().Syncs
		var all []Receipt
		for i := range 100 {
			r, err := appendAsync(p, fmt.Sprint(i))
			must(t, err)
			all = append(all, r)
			synctest.Wait()
		}
		close(g.release)
		for i, r := range all {
			if o, err := r.Wait(t.Context()); err != nil || o != penstock.Offset(i+1) {
				t.Fatalf("append %d: offset %d, %v", i, o, err)
			}
		}
		if n := p.Stats().Syncs - before; n != 2 {
			t.Fatalf("%d syncs for 100 appends, 99 of them during the first; want 2", n)
		}
		m.SetFault(nil)
	})
}

func TestWrittenIsSyncedInTheBackground(t *testing.T) {
	for name, c := range map[string]struct {
		every   SyncEvery
		appends int
		wait    time.Duration
	}{
		"interval": {SyncEvery{Interval: 30 * time.Millisecond}, 1, 30 * time.Millisecond},
		"events":   {SyncEvery{Interval: time.Hour, Events: 5}, 5, 0},
		"bytes":    {SyncEvery{Interval: time.Hour, Bytes: 500}, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := vfs.NewMem()
				cfg := small(m, "data")
				cfg.Durability, cfg.SyncEvery = penstock.Written, c.every
				l, err := Open(cfg)
				must(t, err)
				defer l.Close()
				p := l.Partition(0)
				for i := range c.appends {
					r, err := appendAsync(p, strings.Repeat("x", 20))
					must(t, err)
					if r.Level() != penstock.Written || p.Readable() != penstock.Offset(i+1) {
						t.Fatalf("append %d: level %v, readable %d", i, r.Level(), p.Readable())
					}
				}
				if c.wait > 0 {
					time.Sleep(c.wait - time.Millisecond)
					synctest.Wait()
					if p.Durable() != 0 {
						t.Fatalf("durable %d before the interval has passed", p.Durable())
					}
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				if p.Durable() != penstock.Offset(c.appends) {
					t.Fatalf("durable %d, want %d", p.Durable(), c.appends)
				}
			})
		})
	}
}

func TestIdleBarrierProvesTheLastGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		l, err := Open(small(m, "data"))
		must(t, err)
		p := l.Partition(0)
		mustAppend(t, p, "a")
		mustAppend(t, p, "last")
		at := writtenPos(p)
		time.Sleep(2 * idleBarrier)
		synctest.Wait()
		if writtenPos(p) != at+frameHeaderSize {
			t.Fatalf("position %d after idle time, want a barrier behind %d", writtenPos(p), at)
		}
		syncs := p.Stats().Syncs
		time.Sleep(time.Hour)
		synctest.Wait()
		if writtenPos(p) != at+frameHeaderSize || p.Stats().Syncs != syncs {
			t.Fatal("an idle partition writes on")
		}
		m.Kill()
		_ = l.Close()
		overwrite(t, m, firstSegment, []byte{'!'}, at-8) // in the payload of "last"
		l, err = Open(small(m, "data"))
		must(t, err)
		defer l.Close()
		p = l.Partition(0)
		var ce *penstock.CorruptError
		if !errors.As(p.Fault(), &ce) || ce.First != 1 {
			t.Fatalf("fault %v, want damage at offset 1: the barrier proves that it was synced", p.Fault())
		}
		wantPrefixOf(t, p, "a")
	})
}

func writtenPos(p *Partition) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written.pos
}

func wantPrefixOf(t *testing.T, p *Partition, want ...string) {
	t.Helper()
	got, err := readAll(p, 0)
	wantErr(t, err, penstock.ErrCorrupt)
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("read %q before the damage, want %q", got, want)
	}
}

func TestAppendWaitsWhileTooMuchIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := small(m, "data")
		c.MaxPending = 300
		l, err := Open(c)
		must(t, err)
		defer l.Close()
		p := l.Partition(0)
		mustAppend(t, p, "first")
		g := &gate{vfs.OpSync, make(chan struct{})}
		m.SetFault(g.fault)
		_, err = appendAsync(p, "under way")
		must(t, err)
		synctest.Wait()
		for range 3 {
			_, err = appendAsync(p, "pending")
			must(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := NewFrame(1)
		f.Add([]byte("no room"))
		_, err = p.Append(ctx, f)
		wantErr(t, err, context.DeadlineExceeded)
		done := make(chan error)
		go func() { // ends when there is room; waited for below
			_, err := appendAsync(p, "waits")
			done <- err
		}()
		synctest.Wait()
		close(g.release)
		must(t, <-done)
		synctest.Wait()
		wantRecords(t, p, 0, "first", "under way", "pending", "pending", "pending", "waits")
	})
}

// TestReservedRoomIsUsedOnceAndGivenBack: a frame with room reserved is appended
// without waiting, counts once, and gives its room back when it is released or
// when Close refuses it.
func TestReservedRoomIsUsedOnceAndGivenBack(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		synctest.Test(t, func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability, c.MaxPending = level, 200
			l, err := Open(c)
			must(t, err)
			defer l.Close()
			p := l.Partition(0)
			frame := func() *Frame {
				f := NewFrame(1)
				f.Add([]byte("record"))
				return f
			}
			size := penstock.Bytes(frame().Size())
			a, b := frame(), frame()
			must(t, p.Reserve(t.Context(), a))
			must(t, p.Reserve(t.Context(), a)) // it has room
			must(t, p.Reserve(t.Context(), b))
			if n := p.Stats().Pending; n != 2*size {
				t.Fatalf("%v reserved for two frames of %v", n, size)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			late := frame()
			wantErr(t, p.Reserve(ctx, late), context.DeadlineExceeded)
			late.Release()
			waits := make(chan error)
			go func() { // ends when b has given its room back; received below
				f := frame()
				err := p.Reserve(t.Context(), f)
				f.Release()
				waits <- err
			}()
			synctest.Wait()
			r, err := p.Append(t.Context(), a) // does not wait
			must(t, err)
			_, err = r.Wait(t.Context())
			must(t, err)
			b.Release()
			must(t, <-waits)
			if n := p.Stats().Pending; n != 0 {
				t.Errorf("%v are reserved in the end", n)
			}
			f := frame()
			must(t, p.Reserve(t.Context(), f))
			must(t, l.Close())
			_, err = p.Append(t.Context(), f)
			wantErr(t, err, penstock.ErrClosed)
			f = frame()
			wantErr(t, p.Reserve(t.Context(), f), penstock.ErrClosed)
			f.Release()
			if n := p.Stats().Pending; n != 0 {
				t.Errorf("%v are reserved after Close", n)
			}
			wantErr(t, p.Reserve(t.Context(), NewFrame(0)), penstock.ErrInvalid)
		})
	}
}

func TestCloseSyncsAndMarksClean_QC74(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Durability, c.SyncEvery.Interval = penstock.Written, time.Hour
		l, err := Open(c)
		must(t, err)
		for i := range 5 {
			mustAppend(t, l.Partition(0), fmt.Sprint(i))
		}
		must(t, l.Close())
		must(t, l.Close())
		_, err = tryAppend(l.Partition(0), "late")
		wantErr(t, err, penstock.ErrClosed)
		for img := range m.Images(vfs.Crashes{From: m.Ops(), Seed: 1}) {
			c.FS = img.FS
			l, err := Open(c)
			must(t, err)
			if r := l.Recovery()[0]; !r.Clean || r.Scanned != 0 {
				t.Fatalf("report %+v, want a clean open without a scan", r)
			}
			wantRecords(t, l.Partition(0), 0, "0", "1", "2", "3", "4")
			must(t, l.Close())
		}
	})
}

func TestCursorStoredWithoutSyncIsSyncedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		l, err := Open(small(m, "data"))
		must(t, err)
		defer l.Close()
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		mustAppend(t, l.Partition(0), "a", "b")
		time.Sleep(time.Second)
		must(t, cs[0].Store(1, nil, false))
		if cs[0].Committed() != 1 || !cs[0].dirty() {
			t.Fatal("the commit is not visible, or was synced at once")
		}
		time.Sleep(idleBarrier)
		synctest.Wait()
		if cs[0].dirty() {
			t.Fatal("the commit is not synced after 100 ms")
		}
	})
}
