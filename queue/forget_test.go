package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// TestUnusedGroupIsForgotten: after its time, over restarts, and what only it
// held goes; one that is open stays however idle it is.
func TestUnusedGroupIsForgotten(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.GroupTTL, c.SegmentEvents, c.Partitions = 8*time.Hour, 2, 2
		topic := openDisk(t, c)
		idle := group(t, topic, "idle", queue.GroupConfig{})
		away := group(t, topic, "away", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 40)...)
		time.Sleep(24 * time.Hour) // both are open
		if err := away.Close(); err != nil {
			t.Fatal(err)
		}
		consumeAll(t, idle.Consumer(0))
		time.Sleep(7 * time.Hour)
		topic = reopen(t, topic, c)
		idle = group(t, topic, "idle", queue.GroupConfig{})
		if s := topic.Stats(); len(s.Stored) != 1 || s.Retained != 40 || s.Forgotten != 0 {
			t.Errorf("%d stored groups, %d events retained, %d forgotten; want 1, 40, 0", len(s.Stored), s.Retained, s.Forgotten)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if s := topic.Stats(); len(s.Stored) != 0 || s.Retained != 0 || s.Forgotten != 1 || len(segments(t, c.Dir)) != 0 {
			t.Errorf("%d stored groups, %d events retained, %d forgotten, %d files; want 0, 0, 1, 0", len(s.Stored), s.Retained, s.Forgotten, len(segments(t, c.Dir)))
		}
		wantErr(t, topic.DeleteGroup("away"), penstock.ErrNotFound)
		time.Sleep(24 * time.Hour)
		produceEach(t, topic, "40")
		want(t, consumeAll(t, idle.Consumer(0)), "40")
	})
}

// TestGroupIsNotForgottenBeforeItCanBeOpened: a process that was down for long
// opens its topic and then its groups.
func TestGroupIsNotForgottenBeforeItCanBeOpened(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 4)...)
		want(t, pull(t, g.Consumer(0), 3), numbers(0, 3)...)
		commit(t, g.Consumer(0))
		c.GroupTTL = time.Hour // from now on; when the group was used is not known
		topic = reopen(t, topic, c)
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		topic = reopen(t, topic, c)
		if s := topic.Stats(); len(s.Stored) != 1 {
			t.Fatalf("%d stored groups; the time of one that was not told begins with the first look", len(s.Stored))
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		topic = openDisk(t, c)
		want(t, consumeAll(t, group(t, topic, "g", queue.GroupConfig{}).Consumer(0)), "3")
	})
}
