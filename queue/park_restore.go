package queue

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
	"github.com/penstock/penstock/segfile"
)

// What was parked by an earlier process, and perhaps under another
// configuration, is delivered or makes itself heard: the commit has passed it,
// so nothing else ever would.

// leftParked says what becomes of a retry log that was there when the group was
// opened.
//
// mu is held while the logs are read, so that two who use the group for the
// first time do not read them at once.
type leftParked struct {
	mu   sync.Mutex
	some bool // there are retry logs, perhaps with nothing in them
}

// hasRetry reports whether a retry log was made for a group.
func (c *Config[T]) hasRetry(group string) (bool, error) {
	marks, err := list(c.fs, filepath.Join(c.topicDir(), retryMadeDir))
	name := segfile.EscapeName(group)
	for _, m := range marks {
		if _, of, ok := strings.Cut(m, "."); ok && of == name {
			return true, err
		}
	}
	return false, err
}

// delivers reports whether a use of the group delivers what is parked.
func (g *Group[T]) delivers(use int32) bool { return use == pushed && !g.config.AutoCommit }

// refuseParked returns an error when something is parked, for a use that would
// never deliver it. The caller holds left.mu, and nobody uses the group.
func (g *Group[T]) refuseParked() error {
	events := 0
	for _, k := range g.parking.lanes {
		entries, err := k.log.load()
		if err != nil {
			return err
		}
		k.log.rest()
		if err := k.standing(entries); err != nil {
			return err
		}
		events += len(entries)
	}
	if events == 0 {
		g.left.some = false
		return nil
	}
	return fmt.Errorf("group %q has %s parked, which only Run without AutoCommit delivers; deliver or discard them, or delete the group: %w",
		g.name, debugpage.Count(uint64(events), "event", "events"), penstock.ErrExists)
}

// refuseLeft is refuseParked for a seek of a group that nobody has used since it
// was opened: what an earlier process has parked is not known yet.
func (g *Group[T]) refuseLeft() error {
	g.left.mu.Lock()
	defer g.left.mu.Unlock()
	if !g.left.some || g.use.Load() != unused {
		return nil
	}
	return g.refuseParked()
}

// restored returns the entries as this run takes them up. An event that was
// given up, in a group that has no DeadLetter any more, is retried like every
// other one there. A due time of a clock that was wrong, or of a longer
// backoff, is cut to the longest backoff.
func (k *parkedLane[T]) restored(entries []parkedEntry) []parkedEntry {
	latest := time.Now().Add(k.group.config.Retry.Backoff.Max)
	for i := range entries {
		e := &entries[i].Entry
		if e.Dead && k.group.options.deadLetter == nil {
			e.Dead, e.HandOver, e.Due = false, 0, time.Time{}
		}
		if e.Due.After(latest) {
			e.Due = latest
		}
	}
	return entries
}
