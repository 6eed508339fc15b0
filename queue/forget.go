package queue

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// A group that nobody has open for Config.GroupTTL is forgotten. Its age stands
// beside its stored position. While a group is open its position is stored
// again now and then, so that an age after a crash is not that of the last
// commit; and nothing is forgotten in the first moments of a topic, in which a
// process opens the groups that it needs.

// touch notes that a group is used now.
func (e *fileEngine[T]) touch(c *cursor[T]) {
	if f, ok := c.source.(*fileSource[T]); ok && e.topic.config.GroupTTL > 0 {
		if err := f.cursor.Touch(); err != nil && !errors.Is(err, penstock.ErrClosed) {
			e.topic.logger.Warn("when a group was used is not stored", "group", c.group.name, "partition", c.part.index, "err", err)
		}
	}
}

// forget deletes the groups whose time is over.
func (e *fileEngine[T]) forget() {
	t := e.topic
	ttl := t.config.GroupTTL
	if ttl == 0 {
		return
	}
	open, stored := e.touchOpen(), map[string]time.Time{}
	for i := range t.parts {
		for _, g := range e.log.Partition(i).Groups() {
			if !open[g.Name] && !g.Used.Before(stored[g.Name]) {
				stored[g.Name] = g.Used
			}
		}
	}
	for name, used := range stored {
		if used.IsZero() { // stored before there was a GroupTTL: it begins to count now
			e.touchStored(name)
			continue
		}
		if time.Since(used) <= ttl {
			continue
		}
		switch err := t.DeleteGroup(name); {
		case err == nil:
			t.seen.forgotten.Add(1)
			t.logger.Warn("a group that nobody uses was forgotten", slog.String("group", name), slog.Time("used", used))
		case !errors.Is(err, penstock.ErrExists) && !errors.Is(err, penstock.ErrClosed): // it is in use again
			t.logger.Warn("a group that nobody uses cannot be forgotten; it is tried again", slog.String("group", name), slog.Any("err", err))
		}
	}
}

// touchOpen notes that the open groups are used, and returns their names.
func (e *fileEngine[T]) touchOpen() map[string]bool {
	names := map[string]bool{}
	groups, _ := e.topic.knownGroups()
	for _, g := range groups {
		names[g.name] = true
		for _, c := range g.shares.Load().cursors {
			e.touch(c)
		}
	}
	return names
}

// touchStored begins to count for a group that is not open. One whose position
// is damaged is not forgotten: its owner has to see it.
func (e *fileEngine[T]) touchStored(name string) {
	t := e.topic
	t.groupsMu.Lock() // or it might be made again while it is deleted
	defer t.groupsMu.Unlock()
	if t.groups == nil {
		return
	}
	for i := range t.parts {
		p := e.log.Partition(i)
		if !slices.ContainsFunc(p.Groups(), func(g segfile.GroupInfo) bool { return g.Name == name }) {
			continue
		}
		c, err := p.Cursor(name, segfile.StartEarliest)
		if err == nil {
			err = c.Touch()
		}
		if err != nil {
			t.logger.Warn("when a group was used is not stored", "group", name, "partition", i, "err", err)
		}
	}
}
